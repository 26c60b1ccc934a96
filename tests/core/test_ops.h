// Small differentiable functions for tests of the engine, as plain loops, so that core is tested
// without the ops in kernels/. f64, f32 and bf16, contiguous.
#pragma once

#include <utility>
#include <vector>

#include "core/autograd/engine.h"

namespace lockstep::test {

double Get(const Tensor& x, int64_t i);
void Set(const Tensor& x, int64_t i, double value);

// a + b; hands the gradient of its output to both inputs (Gradients::Put).
Tensor Add(const Tensor& a, const Tensor& b);
// a * b elementwise; saves both, and computes only the needed gradients, in place
// (Gradients::Open).
Tensor Mul(const Tensor& a, const Tensor& b);
// As Mul, but opens both gradients before writing to either.
Tensor MulOpeningFirst(const Tensor& a, const Tensor& b);
// a * b; opens a's gradient, then hands over b's, and only then writes to a's.
Tensor MulMixed(const Tensor& a, const Tensor& b);
// c * x; writes the gradient in the destination's dtype.
Tensor Scale(const Tensor& x, double c);
// The two halves of the first dimension, as two outputs of one node.
std::pair<Tensor, Tensor> Split(const Tensor& x);
// The sum of all elements, [].
Tensor Sum(const Tensor& x);

// A leaf of f64 (or another dtype) that collects a gradient.
Tensor LeafOf(const std::vector<double>& values, DType dtype = DType::kF64);
// As doubles; empty if undefined.
std::vector<double> Values(const Tensor& x);

// How often any Backward of these functions ran for the gradient of input 0 / input 1.
struct Counters {
  int first = 0, second = 0;
};
extern thread_local Counters counters;  // of this thread

}  // namespace lockstep::test
