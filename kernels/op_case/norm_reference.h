// The references of layer_norm, rms_norm and residual_norm.
#pragma once

#include <cmath>

#include "kernels/op_case/op_case.h"

namespace lockstep {

// The rows of x, which are centred for a layer norm, over their root mean square, times the weight,
// plus the bias if there is one.
inline RefTensor NormReference(bool centred, const RefTensor& x, const RefTensor& weight,
                               const RefTensor* bias, double eps) {
  const int64_t c = x.shape[-1];
  RefTensor y(x.shape);
  for (size_t row = 0; row < x.data.size() / c; ++row) {
    const double* xr = x.data.data() + row * c;
    double mean = 0, variance = 0;
    for (int64_t i = 0; centred && i < c; ++i) mean += xr[i] / c;
    for (int64_t i = 0; i < c; ++i) variance += (xr[i] - mean) * (xr[i] - mean) / c;
    for (int64_t i = 0; i < c; ++i) {
      y.data[row * c + i] =
          (xr[i] - mean) / std::sqrt(variance + eps) * weight.data[i] + (bias ? bias->data[i] : 0);
    }
  }
  return y;
}

}  // namespace lockstep
