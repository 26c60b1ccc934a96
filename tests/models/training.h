// Shared by the tests of training: a small GPT and its data.
#pragma once

#include <memory>
#include <vector>

#include "data/loader.h"
#include "models/gpt/gpt.h"
#include "optim/lr_schedule.h"

namespace lockstep::models {

inline constexpr int64_t kWindow = 8;  // tokens

// n ids below 13.
inline std::shared_ptr<const data::TokenSource> Tokens(int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(i * i % 13));
  return std::make_shared<data::MemoryTokens>(ids);
}

inline GptConfig SmallGpt(double dropout) {
  return {.vocab_size = 13,
          .block_size = kWindow,
          .n_layer = 2,
          .n_head = 2,
          .n_embd = 16,
          .dropout = dropout};
}

inline optim::LrSchedule SmallSchedule() {
  return optim::LrSchedule({.lr = 1e-2, .min_lr = 1e-3, .warmup = 2, .decay_steps = 20});
}

inline data::Sampler Shuffled(const data::TokenSource& tokens) {
  return data::Sampler(data::Order::kShuffled, 3, tokens.size(), kWindow);
}

// All parameters, concatenated.
inline std::vector<float> WeightsOf(const Module& model) {
  std::vector<float> all;
  for (const auto& p : model.Parameters()) {
    const std::vector<float> values = p->value().ToVector<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace lockstep::models
