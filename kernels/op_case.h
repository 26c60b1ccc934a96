// One declaration per op, from which come: each device against the fp64 reference in every dtype, a
// run-twice bitwise check, the fp64 gradient check, the error checks, and the microbenchmark.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

// A dense fp64 array, row-major: what references compute on. Indices are stored as doubles.
struct RefTensor {
  Shape shape;
  std::vector<double> data;
  explicit RefTensor(const Shape& s = {}) : shape(s), data(static_cast<size_t>(s.numel())) {}
};

// How to make one input. Values are uniform in [low, high), drawn from (sample name, input number),
// and rounded to the dtype under test before the reference sees them.
struct InputSpec {
  Shape shape;
  double low = -1, high = 1;
  bool index = false;           // i32 integers in [low, high) instead of floats; no gradient
  bool differentiable = true;   // gradient checked
  bool non_contiguous = false;  // handed over as a strided view
};

struct OpSample {
  std::string name;  // "one", "empty", "odd", "transposed", ...
  std::vector<InputSpec> inputs;
  // The op, on inputs of any dtype and device. Results that the reference has too, in its order.
  std::function<std::vector<Tensor>(std::span<const Tensor>)> run;
  // The same in plain loops of doubles.
  std::function<std::vector<RefTensor>(std::span<const RefTensor>)> reference;
  // For the benchmark; samples without FLOPs and bytes are not benchmarked. Bytes: the least that
  // forward must move, per byte of element size (1 per element read or written).
  double flops = 0;
  double elements_moved = 0;
  bool benchmark_only = false;  // too large for the tests
};

struct ErrorSample {
  std::string name;
  std::function<void(Device)> run;  // must throw an Error
  std::string message;              // whose what() contains this
};

// |got - want| <= absolute + relative * |want|, and NaN never passes.
struct Tolerance {
  double relative = 0, absolute = 0;
  std::string why;  // required where it is looser than the dtype's ceiling
};

struct OpCase {
  std::string name;  // the folder's
  std::vector<DType> dtypes = {DType::kF64, DType::kF32};
  std::function<std::vector<OpSample>()> samples;
  std::function<std::vector<ErrorSample>()> errors;
  std::map<DType, Tolerance> tolerances;  // default: DefaultTolerance
  bool differentiable = true;
};

// The ceiling of a dtype: f64 1e-11, f32 1e-5, bf16 1.6e-2 (two units in the last place).
Tolerance DefaultTolerance(DType dtype);

const std::vector<OpCase>& AllOpCases();  // sorted by name
bool RegisterOpCase(OpCase (*make)());

}  // namespace lockstep
