// Documents that are packed one after another into a row of a batch.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace lockstep::nn {

// The documents of a batch [B, T] of tokens. Undefined tensors: each row is one document.
struct Documents {
  Tensor first_key;  // i32 [B, T]: the column at which each token's document begins
  Tensor positions;  // i32 [B, T]: the token's position in its document, column - first_key

  bool defined() const { return first_key.defined(); }
};

// Makes them on the device from the first keys of b rows of t tokens. Throws ArgumentError unless
// there are b * t of them, those of each row begin with 0, and each is the token's own column or
// the first key of the token before it.
Documents MakeDocuments(std::span<const int32_t> first_key, int64_t b, int64_t t, Device device);

// While it lives, the forward passes of this thread keep documents apart: attention sees keys of a
// token's own document only, and positions start anew in each.
//   const nn::DocumentScope scope(nn::MakeDocuments(first_key, rows, cols, device));
//   const Tensor loss = model.Loss(ids, targets);
// What backward needs of the documents is saved with the graph, and a recomputed forward has those
// of the first. Undefined documents hide those of an outer scope. Every rank that computes a part
// of the batch is given the documents of the whole batch.
class DocumentScope {
 public:
  explicit DocumentScope(Documents documents);
  ~DocumentScope();
  DocumentScope(const DocumentScope&) = delete;
  DocumentScope& operator=(const DocumentScope&) = delete;

 private:
  friend const Documents& CurrentDocuments();
  const Documents documents_;
  const DocumentScope* const previous_;
};

// The documents of this thread's innermost scope; undefined outside of any. For layers that depend
// on them. Throws ArgumentError within a KvCacheScope, in which each row continues one text.
const Documents& CurrentDocuments();

}  // namespace lockstep::nn
