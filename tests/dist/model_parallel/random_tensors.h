// Random tensors and leaves, for comparing gradients.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/tensor.h"
#include "kernels/binary/binary.h"
#include "kernels/reduce/reduce.h"

namespace lockstep::dist {

// Normally distributed.
inline Tensor Random(const Shape& shape, int seed, DType dtype = DType::kF64, double scale = 1) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (double& v : values) v = normal(random);
  return Tensor::FromVector(values, shape).To(dtype);
}

inline Tensor LeafOf(const Tensor& value) {
  Tensor leaf = value.Clone().Detach();
  leaf.SetRequiresGrad();
  return leaf;
}

// The sum of all elements times fixed numbers.
inline Tensor Project(const Tensor& y) {
  return ops::Sum(ops::Mul(y, Random(y.shape(), 99).To(y.dtype()).To(y.device())));
}

}  // namespace lockstep::dist
