// Keys and values that outlive a call of Generate.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nn/kv_cache.h"

namespace lockstep::models {

// Keeps the context of the text that was generated last. If the next context begins with the same
// tokens, as in the next turn of a conversation, only the others are computed. Belongs to one
// model, whose weights must not change.
class ContextCache {
 public:
  // Makes room for `capacity` tokens. It grows by doubling, up to `most`, and then forgets what it
  // has, so a text that grows token by token is computed anew only a few times. ArgumentError
  // unless 0 < capacity <= most.
  nn::KvCache& Reserve(int64_t capacity, int64_t most);

  // Forgets all but the tokens with which `context`, which is not empty, also begins, and returns
  // how many these are: less than all of `context`, since its last token must be computed for its
  // logits.
  int64_t KeepPrefixOf(std::span<const int32_t> context);

  // Tells it which tokens a forward pass has added to the cache.
  void Append(std::span<const int32_t> tokens);

 private:
  std::optional<nn::KvCache> cache_;  // of one sequence
  std::vector<int32_t> tokens_;       // that it holds
};

}  // namespace lockstep::models
