// Text from a model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/gpt.h"

namespace lockstep::models {

struct GenerateOptions {
  int64_t tokens = 200;
  double temperature = 1.0;  // 0: always the likeliest token
  int64_t top_k = 0;         // sample among the k likeliest; 0: all
  uint64_t seed = 1337;
};

// Samples tokens that continue the prompt (not empty), each given the last block_size tokens before
// it, and calls on_token with each; false from it stops. Token number i is a function of (seed, i)
// and what precedes it. Ids at or above `vocab_limit` (a padded vocabulary) are never drawn.
std::vector<int32_t> Generate(Gpt& model, std::span<const int32_t> prompt, int64_t vocab_limit,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token = {});

// The id drawn from unnormalised log-probabilities by u in [0, 1).
int32_t DrawToken(std::span<const float> logits, const GenerateOptions& options, double u);

}  // namespace lockstep::models
