// References that several ops share.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/op_case/op_case.h"
#include "kernels/reduction.h"

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

inline double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// x [..., K] weight [N, K]^T, plus the bias if there is one.
inline RefTensor LinearReference(const RefTensor& x, const RefTensor& weight,
                                 const RefTensor* bias) {
  const int64_t n = weight.shape[0], k = weight.shape[1];
  Shape shape = x.shape;
  shape[-1] = n;
  RefTensor y(shape);
  for (int64_t at = 0; at < shape.numel(); ++at) {
    const int64_t row = at / n, column = at % n;
    double z = bias ? bias->data[column] : 0;
    for (int64_t i = 0; i < k; ++i) z += x.data[row * k + i] * weight.data[column * k + i];
    y.data[at] = z;
  }
  return y;
}

// The losses loss(row, target) of rows that are not ignored, reduced.
template <class F>
RefTensor LossReference(const RefTensor& targets, Reduction reduction, int64_t ignore,
                        const F& loss) {
  RefTensor losses(targets.shape), total(Shape{});
  double count = 0;
  for (size_t i = 0; i < targets.data.size(); ++i) {
    const auto target = static_cast<int64_t>(targets.data[i]);
    if (target == ignore) continue;
    losses.data[i] = loss(static_cast<int64_t>(i), target);
    total.data[0] += losses.data[i];
    count += 1;
  }
  if (reduction == Reduction::kNone) return losses;
  if (reduction == Reduction::kMean && count > 0) total.data[0] /= count;
  return total;
}

// logits [..., V], targets [...].
inline RefTensor CrossEntropyReference(const RefTensor& logits, const RefTensor& targets,
                                       Reduction reduction, int64_t ignore, double z_loss = 0) {
  const int64_t v = logits.shape[-1];
  return LossReference(targets, reduction, ignore, [&](int64_t i, int64_t target) {
    const double* row = logits.data.data() + i * v;
    const double largest = *std::max_element(row, row + v);
    double total = 0;
    for (int64_t j = 0; j < v; ++j) total += std::exp(row[j] - largest);
    const double log_sum_exp = largest + std::log(total);
    return log_sum_exp - row[target] + z_loss * log_sum_exp * log_sum_exp;
  });
}

}  // namespace lockstep
