#include "models/gpt/context_cache.h"

#include <algorithm>

namespace lockstep::models {

nn::KvCache& ContextCache::Reserve(int64_t capacity, int64_t most) {
  LS_CHECK(capacity > 0 && capacity <= most, "a cache of ", capacity, " tokens, at most ", most);
  const int64_t has = cache_ ? cache_->capacity() : 0;
  if (has < capacity) {
    tokens_.clear();
    cache_.emplace(1, std::min(most, std::max(capacity, 2 * has)));
  }
  return *cache_;
}

int64_t ContextCache::KeepPrefixOf(std::span<const int32_t> context) {
  LS_CHECK(!context.empty(), "a context needs at least one token");
  LS_CHECK(cache_.has_value(), "KeepPrefixOf needs a cache: call Reserve first");
  const auto differs = std::ranges::mismatch(context.first(context.size() - 1), tokens_).in2;
  tokens_.erase(differs, tokens_.end());
  cache_->Truncate(0, std::ssize(tokens_));
  return std::ssize(tokens_);
}

void ContextCache::Append(std::span<const int32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

}  // namespace lockstep::models
