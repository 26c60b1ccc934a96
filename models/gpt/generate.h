// Text from a model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/gpt/context_cache.h"
#include "models/gpt/gpt.h"
#include "models/gpt/text_batch.h"

namespace lockstep::models {

struct GenerateOptions {
  int64_t tokens = 200;      // to generate, at most
  double temperature = 1.0;  // these four as in SamplingOptions
  int64_t top_k = 0;
  double top_p = 1;
  double repetition_penalty = 1;
  uint64_t seed = 1337;
  // Keeps the keys and values of earlier tokens; without it each token recomputes its whole
  // context, as a check. The tokens are the same, except for ties within the rounding of f32.
  bool kv_cache = true;
  // By how many tokens the context moves on once it is full: see ContextStart. 0: half of it.
  int64_t slide = 0;
  int64_t batch_size = 16;  // sequences at once, which bounds the cache
};

struct GenerateSequence {
  std::vector<int32_t> prompt;  // not empty
  int64_t sample = 0;           // which of several texts of the same prompt
};

struct GenerateStats {
  int64_t prompt_tokens = 0;  // computed to start sequences
  double prompt_seconds = 0;  // until each sequence's first token
  int64_t tokens = 0;         // generated in the remaining time: all but each sequence's first
  double seconds = 0;

  GenerateStats& operator+=(const GenerateStats& other);
};

// Continues each sequence by up to options.tokens tokens, and returns these. on_token is called
// with the number of a sequence and each of its tokens; returning false ends that sequence.
//
// Token number p of a text is a function of what precedes it, of the seed, of the sequence's
// `sample`, and of p: whether a prompt is alone or in a batch, generated at once or in two parts,
// does not matter. Ids at or above `vocab_limit` (a padded vocabulary) are never drawn. No gradient
// is recorded, and the cache is allocated once. ArgumentError for empty prompts, for ids outside of
// the model's vocabulary, and for options out of range.
std::vector<std::vector<int32_t>> GenerateBatch(
    Gpt& model, std::span<const GenerateSequence> sequences, int64_t vocab_limit,
    const GenerateOptions& options,
    const std::function<bool(int64_t sequence, int32_t id)>& on_token = {},
    GenerateStats* stats = nullptr);

// For one sequence. `kept` keeps its context for the next call: only the part of a prompt after the
// tokens that are kept is computed, and counted in prompt_tokens. The tokens are the same, except
// for ties within the rounding of f32. Without options.kv_cache it stays unused. The time and
// tokens of this text are added to `stats`.
std::vector<int32_t> Generate(Gpt& model, std::span<const int32_t> prompt, int64_t vocab_limit,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& on_token = {},
                              ContextCache* kept = nullptr, GenerateStats* stats = nullptr);

}  // namespace lockstep::models
