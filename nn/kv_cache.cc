#include "nn/kv_cache.h"

#include <algorithm>

#include "kernels/cached_attention/cached_attention.h"
#include "kernels/concat/concat.h"

namespace lockstep::nn {
namespace {

thread_local KvCacheScope* current_scope = nullptr;

Tensor Index(const std::vector<int64_t>& values, Device device) {
  const std::vector<int32_t> narrow(values.begin(), values.end());
  return Tensor::FromVector(narrow, {static_cast<int64_t>(narrow.size())}, device);
}

}  // namespace

KvCache::KvCache(int64_t sequences, int64_t capacity) : capacity_(capacity) {
  LS_CHECK(sequences > 0 && capacity > 0,
           "a cache of keys and values needs at least one sequence and one position, got ",
           sequences, " and ", capacity);
  lengths_.assign(static_cast<size_t>(sequences), 0);
}

int64_t KvCache::length(int64_t sequence) const {
  LS_CHECK(sequence >= 0 && sequence < sequences(), "sequence ", sequence, " of a cache of ",
           sequences());
  return lengths_[static_cast<size_t>(sequence)];
}

void KvCache::Truncate(int64_t sequence, int64_t length) {
  const int64_t has = this->length(sequence);
  LS_CHECK(length >= 0 && length <= has, "sequence ", sequence, " of the cache has ", has,
           " tokens, so it cannot keep ", length, " of them");
  lengths_[static_cast<size_t>(sequence)] = length;
}

int64_t KvCache::bytes() const {
  int64_t total = 0;
  for (const Layer& layer : layers_) total += layer.k.bytes() + layer.v.bytes();
  return total;
}

KvCacheScope::KvCacheScope(KvCache& cache, std::vector<int64_t> sequences, int64_t tokens,
                           Device device)
    : cache_(cache), sequences_(std::move(sequences)), tokens_(tokens), previous_(current_scope) {
  LS_CHECK(tokens > 0 && !sequences_.empty(), "a forward pass with a cache needs tokens, got ",
           sequences_.size(), " sequences of ", tokens);
  for (size_t b = 0; b < sequences_.size(); ++b) {
    first_.push_back(cache.length(sequences_[b]));
    LS_CHECK(std::find(sequences_.begin(), sequences_.begin() + b, sequences_[b]) ==
                 sequences_.begin() + b,
             "sequence ", sequences_[b], " of the cache is in the batch twice");
    LS_CHECK(first_[b] + tokens <= cache.capacity(), "sequence ", sequences_[b], " has ", first_[b],
             " tokens in a cache of ", cache.capacity(), ": ", tokens, " more do not fit");
    LS_CHECK(tokens == 1 || (first_[b] == 0) == (first_[0] == 0),
             "a batch of several tokens must not mix new sequences and ones that continue");
  }
  rows_ = Index(sequences_, device);
  positions_ = Index(first_, device);
  current_scope = this;
}

KvCacheScope::~KvCacheScope() { current_scope = previous_; }

KvCacheScope* KvCacheScope::Current() { return current_scope; }

bool KvCacheScope::IsOpen() const {
  for (size_t b = 0; b < sequences_.size(); ++b) {
    if (cache_.length(sequences_[b]) != first_[b]) return false;
  }
  return true;
}

Tensor KvCacheScope::Attend(const void* layer, const Tensor& q, const Tensor& k, const Tensor& v,
                            const ops::CausalAttentionOptions& options) {
  LS_CHECK(k.defined() && k.ndim() == 4 && k.dim(0) == rows_.dim(0) && k.dim(1) == tokens_,
           "attention with a cache: keys must be [", rows_.dim(0), ", ", tokens_,
           ", G, D], as the scope says, got ", k.Describe());
  LS_CHECK(
      IsOpen() && !(next_layer_ > 0 && layer == cache_.layers_[0].of),
      "a second forward pass in one KvCacheScope: make a scope for each pass, and Commit() it");
  const auto known = std::find_if(cache_.layers_.begin(), cache_.layers_.end(),
                                  [&](const KvCache::Layer& l) { return l.of == layer; });
  LS_CHECK(
      static_cast<size_t>(known - cache_.layers_.begin()) == next_layer_,
      "the model's layers run in a different order than in the first pass: a KvCache is for one "
      "model, in which each attention layer runs once");
  if (next_layer_ == cache_.layers_.size()) {
    const Shape shape{cache_.sequences(), k.dim(2), cache_.capacity(), k.dim(3)};
    cache_.layers_.push_back({layer, Tensor::Zeros(shape, k.dtype(), k.device()),
                              Tensor::Zeros(shape, k.dtype(), k.device())});
  }
  const KvCache::Layer& kept = cache_.layers_[next_layer_++];
  ops::StoreInCache(k, rows_, positions_, kept.k);
  ops::StoreInCache(v, rows_, positions_, kept.v);
  // The tokens of a text that starts see no others. A single one takes the general path, so that
  // its bits do not depend on what else is in the batch.
  if (tokens_ > 1 && first_[0] == 0) return ops::CausalAttention(q, k, v, options);
  return ops::CachedAttention(q, kept.k, kept.v, rows_, positions_, options);
}

void KvCacheScope::Commit() const {
  LS_CHECK(IsOpen(), "a KvCacheScope was committed already: make one for each forward pass");
  for (int64_t sequence : sequences_) cache_.lengths_[static_cast<size_t>(sequence)] += tokens_;
}

Tensor AtPositions(Tensor x, const std::function<Tensor(Tensor x, int64_t first_position)>& f) {
  const KvCacheScope* scope = KvCacheScope::Current();
  if (scope == nullptr) return f(std::move(x), 0);
  const std::span<const int64_t> first = scope->first_positions();
  const int64_t batch = static_cast<int64_t>(first.size());
  LS_CHECK(x.defined() && x.ndim() > 0 && x.dim(0) == batch,
           "with a cache the batch has the scope's ", batch, " sequences, got ", x.Describe());
  std::vector<Tensor> parts;
  for (int64_t begin = 0, end = 0; begin < batch; begin = end) {
    while (end < batch && first[static_cast<size_t>(end)] == first[static_cast<size_t>(begin)]) {
      ++end;
    }
    parts.push_back(f(x.Slice(0, begin, end), first[static_cast<size_t>(begin)]));
  }
  return parts.size() == 1 ? parts[0] : ops::Concat(parts, 0);
}

}  // namespace lockstep::nn
