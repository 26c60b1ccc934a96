// The keys and values of a text that attention layers keep, so that its next token costs the work
// of one token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/autograd/grad_mode.h"
#include "core/tensor.h"
#include "kernels/attention/attention.h"

namespace lockstep::nn {

// Holds a number of texts ("sequences") for one model. Its memory, 2 numbers per layer, sequence,
// position and element of a key, is allocated once, by the first forward pass.
class KvCache {
 public:
  // `capacity`: how many tokens a sequence may have. Throws ArgumentError unless both are positive.
  KvCache(int64_t sequences, int64_t capacity);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  int64_t sequences() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t capacity() const { return capacity_; }
  // How many tokens of a sequence are in the cache.
  int64_t length(int64_t sequence) const;
  // Forgets a sequence: its next token is its first.
  void Clear(int64_t sequence) { Truncate(sequence, 0); }
  // Forgets all but the first `length` tokens of a sequence. Throws ArgumentError if it has fewer.
  void Truncate(int64_t sequence, int64_t length);
  int64_t bytes() const;

 private:
  friend class KvCacheScope;
  struct Layer {
    const void* of;  // the attention layer
    Tensor k, v;     // [sequences, key heads, capacity, D]
  };

  int64_t capacity_;
  std::vector<int64_t> lengths_;
  std::vector<Layer> layers_;  // in the order in which they run
};

// While it lives, the forward passes of this thread continue sequences of a cache: row b of the
// batch [B, T] holds the T tokens that follow what sequence `sequences[b]` has. Layers find it by
// Current(), and no gradient is recorded. One scope per pass:
//   const KvCacheScope scope(cache, sequences, ids.dim(1), device);
//   const Tensor logits = model(ids);
//   scope.Commit();
// Throws ArgumentError for sequences that the cache lacks or that are named twice, where a sequence
// would exceed the capacity, and where a batch of several tokens mixes new sequences and ones that
// continue. Text can also be generated within a training step: nothing is recorded.
class KvCacheScope {
 public:
  KvCacheScope(KvCache& cache, std::vector<int64_t> sequences, int64_t tokens, Device device);
  ~KvCacheScope();
  KvCacheScope(const KvCacheScope&) = delete;
  KvCacheScope& operator=(const KvCacheScope&) = delete;

  // The innermost of this thread; null outside of any.
  static KvCacheScope* Current();

  // For attention layers, once each: keeps k and v [B, T, G, D] and returns the attention of q [B,
  // T, H, D] over all that the sequences have, [B, T, H, D]. A sequence's result does not depend on
  // the others in the batch. `layer`: the caller, to detect a second pass, which throws.
  // `options` are the layer's scale, softcap and window.
  Tensor Attend(const void* layer, const Tensor& q, const Tensor& k, const Tensor& v,
                const ops::CausalAttentionOptions& options = {});
  // The position of each sequence's first new token.
  std::span<const int64_t> first_positions() const { return first_; }
  // The pass succeeded: the new tokens are in the cache. Throws ArgumentError the second time.
  void Commit() const;

 private:
  // Whether the sequences are still as they were at the beginning.
  bool IsOpen() const;

  NoGrad no_grad_;
  KvCache& cache_;
  std::vector<int64_t> sequences_, first_;
  int64_t tokens_;
  Tensor rows_, positions_;  // the same for kernels, i32 [B]
  size_t next_layer_ = 0;
  KvCacheScope* previous_;
};

// What depends on where tokens are in their text (position embeddings, rotations): f(part of x,
// position of its first token) for x [B, T, ...]. Outside of a KvCacheScope f(x, 0); within, once
// for each run of sequences that are equally long, the results joined. x is moved into f, which may
// then be its last holder.
Tensor AtPositions(Tensor x, const std::function<Tensor(Tensor x, int64_t first_position)>& f);

}  // namespace lockstep::nn
