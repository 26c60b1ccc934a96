// Walks over tensors of any strides: views, broadcasts. Usable from .cu files.
#pragma once

#include "core/philox.h"
#include "core/shape.h"

namespace lockstep {

// A row-major walk over the elements of K tensors of the same shape. Neighbouring dimensions that
// all tensors step through evenly are merged, so contiguous tensors are one dimension. Passed to
// kernels by value.
template <int K>
struct StridedDims {
  int ndim = 0;
  bool wide = false;  // a size beyond 32 bits, which a short index may yet have to be divided by
  int64_t size[Shape::kMaxDims] = {};
  int64_t step[K][Shape::kMaxDims] = {};  // in elements

  StridedDims(const Shape& shape, const Shape (&strides)[K]) {
    for (int i = 0; i < shape.ndim(); ++i) {
      if (shape[i] == 1) continue;
      bool merges = ndim > 0;
      for (int k = 0; k < K; ++k) {
        merges = merges && step[k][ndim - 1] == strides[k][i] * shape[i];
      }
      if (merges) {
        size[ndim - 1] *= shape[i];
      } else {
        size[ndim++] = shape[i];
      }
      for (int k = 0; k < K; ++k) step[k][ndim - 1] = strides[k][i];
    }
    for (int d = 0; d < ndim; ++d) wide = wide || size[d] > UINT32_MAX;
    if (ndim > 0) return;
    size[ndim++] = 1;
    for (int k = 0; k < K; ++k) step[k][0] = 1;
  }

  LS_HOST_DEVICE int64_t inner_size() const { return size[ndim - 1]; }
  LS_HOST_DEVICE int64_t inner_step(int k) const { return step[k][ndim - 1]; }

  // Where element `index` of the shape lies in each tensor.
  LS_HOST_DEVICE void Offsets(int64_t index, int64_t (&offsets)[K]) const {
    for (int k = 0; k < K; ++k) offsets[k] = 0;
    // 64-bit divisions cost several times as much as 32-bit ones.
    if (!wide && index <= UINT32_MAX) {
      auto rest = static_cast<uint32_t>(index);
      for (int d = ndim - 1; d > 0; --d) {
        const auto n = static_cast<uint32_t>(size[d]);
        for (int k = 0; k < K; ++k) offsets[k] += rest % n * step[k][d];
        rest /= n;
      }
      for (int k = 0; k < K; ++k) offsets[k] += rest * step[k][0];
    } else {
      for (int d = ndim - 1; d > 0; --d) {
        for (int k = 0; k < K; ++k) offsets[k] += index % size[d] * step[k][d];
        index /= size[d];
      }
      for (int k = 0; k < K; ++k) offsets[k] += index * step[k][0];
    }
  }
};

}  // namespace lockstep
