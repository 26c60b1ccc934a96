// New tensors: sequences, the identity, random numbers. Zeros, Full, FromVector and the like are
// methods of Tensor.
#pragma once

#include "core/tensor.h"

namespace lockstep::ops {

// All are contiguous and without a gradient. They are computed on the host, in f64 (i64 for
// RandInt), rounded to the dtype once, and copied to the device: so their bits are the same on all
// devices.

// [0, 1, ..., n - 1].
Tensor Arange(int64_t n, DType dtype = DType::kI64, Device device = kCpu);
// begin + i step for i = 0, 1, ... while it lies before `end`: ceil((end - begin) / step) elements.
// Integers are rounded toward zero. Throws ArgumentError unless step leads from begin toward end.
Tensor Arange(double begin, double end, double step, DType dtype, Device device = kCpu);
// n numbers at equal distances, the first `begin`, the last `end`; one is `begin`.
Tensor Linspace(double begin, double end, int64_t n, DType dtype = DType::kF32,
                Device device = kCpu);
// The identity [n, n].
Tensor Eye(int64_t n, DType dtype = DType::kF32, Device device = kCpu);

// Random numbers. Element i is a function of (seed, i) alone: Philox keyed by the seed, with the
// function's name and i as its counter. So equal calls give equal tensors, whatever the device and
// the number of threads; take another seed where other numbers are wanted, such as the step's. A
// tensor of a larger shape begins with the elements of a smaller one. The three functions are
// independent of each other at one seed.

// Uniform in [0, 1). A narrower dtype has the same numbers with digits cut off, so never 1.
Tensor Rand(const Shape& shape, uint64_t seed, DType dtype = DType::kF32, Device device = kCpu);
// Normal with mean 0 and variance 1, by Box and Muller; at most 8.7 in size.
Tensor Randn(const Shape& shape, uint64_t seed, DType dtype = DType::kF32, Device device = kCpu);
// Uniform integers in [low, high). Throws ArgumentError unless low < high.
Tensor RandInt(int64_t low, int64_t high, const Shape& shape, uint64_t seed,
               DType dtype = DType::kI64, Device device = kCpu);

}  // namespace lockstep::ops
