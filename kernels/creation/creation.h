// New tensors: sequences, the identity, random numbers. Zeros, Full, FromVector and the like are
// methods of Tensor.
#pragma once

#include <concepts>

#include "core/tensor.h"

namespace lockstep::ops {

// All are contiguous and without a gradient. They are computed on the host, in f64 (i64 for
// RandInt), rounded to the dtype once, and copied to the device: so their bits are the same on all
// devices.

// [0, 1, ..., n - 1]. Throws ArgumentError if the dtype, an integer's, does not have n - 1.
Tensor Arange(int64_t n, DType dtype = DType::kI64, Device device = kCpu);
// begin + i step for i = 0, 1, ... while it lies before `end`: ceil((end - begin) / step) elements,
// i64 if all three are integers, else f32, unless another dtype is given. Rounded toward zero for a
// dtype of integers. Throws ArgumentError unless step leads from begin toward end, and for an
// element that the dtype, an integer's, does not have.
Tensor Arange(double begin, double end, double step = 1, DType dtype = DType::kF32,
              Device device = kCpu);
template <std::integral Begin, std::integral End, std::integral Step = int>
Tensor Arange(Begin begin, End end, Step step = 1, DType dtype = DType::kI64,
              Device device = kCpu) {
  return Arange(static_cast<double>(begin), static_cast<double>(end), static_cast<double>(step),
                dtype, device);
}
// Arange(3.5) would otherwise mean Arange(3): Arange(0, 3.5) has the four elements before 3.5.
template <std::floating_point N>
Tensor Arange(N n, DType dtype = DType::kI64, Device device = kCpu) = delete;
// n numbers at equal distances, the first `begin`, the last `end`; one is `begin`.
Tensor Linspace(double begin, double end, int64_t n, DType dtype = DType::kF32,
                Device device = kCpu);
// The identity [n, n].
Tensor Eye(int64_t n, DType dtype = DType::kF32, Device device = kCpu);

// Random numbers. Element i is a function of only (seed, i): Philox keyed by the seed, with the
// function's name and i as its counter. So equal calls give equal tensors, whatever the device and
// the number of threads. A tensor of a larger shape begins with the elements of a smaller one, so
// two tensors of one seed are not independent, also where their shapes differ: give each its own
// seed, such as HashName("mask") + step (core/philox.h). (The initialisers of nn do so by the names
// of parameters.) The three functions are independent of each other at one seed.

// Uniform in [0, 1). A narrower dtype has the same numbers with digits cut off, so never 1.
Tensor Rand(const Shape& shape, uint64_t seed, DType dtype = DType::kF32, Device device = kCpu);
// Normal with mean 0 and variance 1, by Box and Muller; at most 8.7 in size.
Tensor Randn(const Shape& shape, uint64_t seed, DType dtype = DType::kF32, Device device = kCpu);
// Uniform integers in [low, high). Throws ArgumentError unless low < high, and if the dtype, an
// integer's, does not have them all.
Tensor RandInt(int64_t low, int64_t high, const Shape& shape, uint64_t seed,
               DType dtype = DType::kI64, Device device = kCpu);

}  // namespace lockstep::ops
