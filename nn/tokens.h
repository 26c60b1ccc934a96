// The tokens of a batch, for layers that look up something for each.
#pragma once

#include "core/tensor.h"

namespace lockstep::nn {

// While it lives, CurrentTokens() of this thread are these ids [B, T], i32 or i64. A recomputed
// forward has those of the first, and every rank that computes a part of the batch is given the
// ids of the whole batch.
class TokenScope {
 public:
  explicit TokenScope(const Tensor& ids);
  ~TokenScope();
  TokenScope(const TokenScope&) = delete;
  TokenScope& operator=(const TokenScope&) = delete;

 private:
  friend Tensor CurrentTokens();
  const Tensor ids_;
  const TokenScope* const previous_;
};

// The ids of this thread's innermost scope; undefined outside of any.
Tensor CurrentTokens();

}  // namespace lockstep::nn
