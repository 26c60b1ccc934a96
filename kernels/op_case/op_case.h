// One declaration per op, from which are derived: a comparison of each device with the fp64
// reference in every dtype, a run-twice bitwise check, the fp64 gradient check, the error checks,
// and the microbenchmark.
#pragma once

#include <functional>
#include <map>
#include <optional>
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
  bool non_contiguous = false;  // handed over as a strided view; needs two dimensions or more
  std::optional<DType> dtype;   // always this one, such as f32 state; else the dtype under test
};

// What a sample's functions take, and what they return: one result or several.
using TensorSpan = std::span<const Tensor>;
using RefSpan = std::span<const RefTensor>;
template <class T>
struct Results : std::vector<T> {
  Results() = default;
  Results(T one) { this->push_back(std::move(one)); }
  Results(std::vector<T> all) : std::vector<T>(std::move(all)) {}
};

// What a call costs at least: FLOPs, and elements read or written, in forward and in backward
// without forward. Backward's default is a GEMM's.
struct OpWork {
  double flops = 0, elements = 0;
  double backward_flops = 2 * flops, backward_elements = 2 * elements;
};

struct OpSample {
  std::string name;  // "one", "empty", "odd", "transposed", ...
  std::vector<InputSpec> inputs;
  // The op, on inputs of any dtype and device. Results that the reference has too, in its order.
  std::function<Results<Tensor>(TensorSpan)> run;
  // The same in plain loops of doubles.
  std::function<Results<RefTensor>(RefSpan)> reference;
  // Of a sample for the benchmark, which is too large for the tests.
  std::optional<OpWork> benchmark = {};
  // False where the fp64 run rounds on the way (a cast to f32): gradients are then only compared
  // between dtypes.
  bool finite_differences = true;
  // The function is only piecewise smooth (relu, max): differences of large inputs are then taken
  // along single elements.
  bool kinks = false;
};

struct ErrorSample {
  std::string name;
  std::function<void(Device)> run;  // must throw an Error
  std::string message;              // whose what() contains this
};

// |got - want| <= relative * |want| + absolute * rms(all of the wanted tensor, at least 1e-3), and
// NaN never passes. So a tensor of small values is held to a small error.
struct Tolerance {
  double relative = 0, absolute = 0;
  std::string why;  // required where it is looser than the dtype's ceiling
};

struct OpCase {
  std::string name;  // the folder's
  std::vector<DType> dtypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  std::function<std::vector<OpSample>()> samples = {};
  std::function<std::vector<ErrorSample>()> errors = {};
  std::map<DType, Tolerance> tolerances = {};  // default: DefaultTolerance
  // For a gradient against the f64 backward; default: twice that of the results. Must say why where
  // it is looser than twice the ceiling.
  std::map<DType, Tolerance> gradient_tolerances = {};
  bool differentiable = true;
};

// The ceiling of a dtype, relative and absolute: f64 1e-11, f32 1e-5, f16 2e-3, bf16 1.6e-2 (two
// units in the last place).
Tolerance DefaultTolerance(DType dtype);
// For results that only one number is right for, as of copies: none, in any of the default dtypes.
std::map<DType, Tolerance> NoTolerance();
Tolerance ForwardTolerance(const OpCase& c, DType dtype);
Tolerance GradientTolerance(const OpCase& c, DType dtype);

// All registered cases, sorted by name. Throws Error if two have the same name.
const std::vector<OpCase>& AllOpCases();
// For a static initialiser: const bool registered = RegisterOpCase({.name = "gelu", ...});
bool RegisterOpCase(OpCase op_case);
// The cases whose name, or whose "name/sample" for some sample, contains `filter`. Throws
// ArgumentError listing the names if there is none.
std::vector<const OpCase*> FindOpCases(const std::string& filter);
// Whether `filter` selects this sample of a case that it found.
bool SelectsSample(const std::string& filter, const OpCase& c, const OpSample& sample);

// ---- Inputs, for the checks and the benchmark. ----

// `value` as the dtype can hold it.
double RoundTo(DType dtype, double value);
// The values of input `index`, rounded to its dtype when `dtype` is under test.
RefTensor InputValues(const OpSample& sample, size_t index, DType dtype);
// A tensor of these values, strided if the spec says so.
Tensor InputTensor(const InputSpec& spec, const RefTensor& values, DType dtype, Device device);
// Any tensor's elements as doubles.
RefTensor ToRef(const Tensor& x);

// ---- For references. ----

// f of each element of the first input.
std::function<Results<RefTensor>(RefSpan)> OfEach(std::function<double(double)> f);
// A tensor whose element at row-major position i is f(i).
RefTensor FromElements(const Shape& shape, const std::function<double(int64_t)>& f);
// The element of x that broadcasting puts at row-major position `index` of `shape`.
double BroadcastAt(const RefTensor& x, const Shape& shape, int64_t index);

// ---- For errors. ----

// Zeros of these sizes, of f32 unless a dtype is given.
template <class... Sizes>
Tensor Zeros(DType dtype, Device device, Sizes... sizes) {
  return Tensor::Zeros({int64_t{sizes}...}, dtype, device);
}
template <class... Sizes>
Tensor Zeros(Device device, Sizes... sizes) {
  return Zeros(DType::kF32, device, sizes...);
}

}  // namespace lockstep
