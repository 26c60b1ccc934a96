// Tensors as the matrices of products.
#pragma once

#include "core/tensor.h"

namespace lockstep {

// [..., K] as [M, K]; contiguous. No gradient.
inline Tensor AsMatrix(const Tensor& x) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.ndim(); ++i) rows *= x.dim(i);
  return x.Detach().View({rows, x.dim(-1)});
}

// [..., K] with another K.
inline Shape WithLast(Shape shape, int64_t last) {
  shape[-1] = last;
  return shape;
}

}  // namespace lockstep
