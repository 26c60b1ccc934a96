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

// From the first keys of b rows of t tokens, on the device. Throws ArgumentError for another number
// of them, and unless those of a row begin with 0 and each is the token's own column or the first
// key of the token before it.
Documents MakeDocuments(std::span<const int32_t> first_key, int64_t b, int64_t t, Device device);

// While it lives, the forward passes of this thread keep documents apart: attention sees keys of a
// token's own document only, and positions start anew in each.
//   const nn::DocumentScope scope(nn::MakeDocuments(first_key, rows, cols, device));
//   const Tensor loss = model.Loss(ids, targets);
// What backward needs of it is saved with the graph, and a recomputed forward has the documents of
// the first. Undefined documents hide those of a scope around it. Every rank that computes a part
// of the batch has the documents of all of it.
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
// on them. Throws ArgumentError where a KvCacheScope continues texts, of which each row has one.
const Documents& CurrentDocuments();

}  // namespace lockstep::nn
