#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/op_case/op_case.h"
#include "kernels/reduce/reduce.h"

namespace lockstep {
namespace {

enum class Kind { kSum, kMean, kMax };
constexpr const char* kNames[] = {"sum", "mean", "max"};

struct Over {
  std::vector<int> dims;  // empty: all
  bool keepdim = false;
};

bool IsReduced(const Over& over, int dim, int ndim) {
  return over.dims.empty() || std::any_of(over.dims.begin(), over.dims.end(),
                                          [&](int d) { return (d < 0 ? d + ndim : d) == dim; });
}

RefTensor Reference(Kind kind, const Over& over, const RefTensor& x) {
  Shape kept;
  const int ndim = x.shape.ndim();
  for (int i = 0; i < ndim; ++i) {
    if (!IsReduced(over, i, ndim)) kept.push_back(x.shape[i]);
    if (IsReduced(over, i, ndim) && over.keepdim) kept.push_back(1);
  }
  RefTensor y(kept);
  if (kind == Kind::kMax) {
    std::fill(y.data.begin(), y.data.end(), -std::numeric_limits<double>::infinity());
  }
  for (size_t i = 0; i < x.data.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), to = 0, step = 1;
    for (int d = ndim - 1; d >= 0; --d) {
      if (!IsReduced(over, d, ndim)) {
        to += rest % x.shape[d] * step;
        step *= x.shape[d];
      }
      rest /= x.shape[d];
    }
    if (kind == Kind::kMax) {
      y.data[to] = std::max(y.data[to], x.data[i]);
    } else {
      y.data[to] += x.data[i];
    }
  }
  if (kind == Kind::kMean) {
    const double n = static_cast<double>(x.data.size()) / static_cast<double>(y.data.size());
    for (double& v : y.data) v /= n;
  }
  return y;
}

OpSample Sample(Kind kind, const std::string& name, const InputSpec& x, const Over& over) {
  return {
      .name = StrCat(kNames[static_cast<int>(kind)], "_", name),
      .inputs = {x},
      .run =
          [=](std::span<const Tensor> in) {
            const auto reduce = kind == Kind::kSum    ? ops::Sum
                                : kind == Kind::kMean ? ops::Mean
                                                      : ops::Max;
            return std::vector{reduce(in[0], over.dims, over.keepdim)};
          },
      .reference =
          [=](std::span<const RefTensor> in) { return std::vector{Reference(kind, over, in[0])}; },
      .kinks = kind == Kind::kMax};
}

// [rows, C] reduced over dim.
OpSample Benchmark(Kind kind, const std::string& name, int dim) {
  OpSample s = Sample(kind, name, {.shape = {4096, 1024}}, {{dim}});
  s.flops = s.elements_moved = 4096 * 1024;
  s.backward_flops = s.backward_elements_moved = 4096 * 1024;
  s.benchmark_only = true;
  return s;
}

OpCase Make() {
  OpCase c;
  c.name = "reduce";
  c.dtypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  c.samples = [] {
    std::vector<OpSample> samples;
    for (Kind kind : {Kind::kSum, Kind::kMean, Kind::kMax}) {
      const std::vector<OpSample> some = {
          Sample(kind, "empty", {.shape = {3, 0, 4}}, {{0}}),
          Sample(kind, "scalar", {.shape = {}}, {}),
          Sample(kind, "one", {.shape = {1, 1}}, {{1}}),
          Sample(kind, "rows", {.shape = {5, 37}}, {{-1}}),
          Sample(kind, "rows_kept", {.shape = {5, 37}}, {{-1}, true}),
          Sample(kind, "columns", {.shape = {37, 5}}, {{0}}),
          Sample(kind, "middle", {.shape = {3, 7, 5}}, {{1}, true}),
          Sample(kind, "first_and_last", {.shape = {3, 7, 5}}, {{0, 2}}),
          Sample(kind, "interleaved", {.shape = {2, 3, 4, 3}}, {{2, 0}, true}),
          Sample(kind, "neighbours_across_one", {.shape = {4, 3, 1, 5}}, {{1, 3}}),
          Sample(kind, "all", {.shape = {9, 11, 2}}, {}),
          Sample(kind, "transposed", {.shape = {9, 4}, .non_contiguous = true}, {{1}}),
          Sample(kind, "long_row", {.shape = {2, 70001}, .low = 0.25, .high = 0.75}, {{1}}),
          Sample(kind, "long_columns", {.shape = {1100, 30}}, {{0}}),
          Sample(kind, "wide_columns", {.shape = {1, 300, 261}}, {{1}}),
          Benchmark(kind, "over_rows", 0),
          Benchmark(kind, "over_columns", 1)};
      samples.insert(samples.end(), some.begin(), some.end());
    }
    // The sum over nothing.
    samples.push_back(Sample(Kind::kSum, "nothing", {.shape = {3, 0}}, {{1}}));
    return samples;
  };
  c.errors = [] {
    return std::vector<ErrorSample>{
        {"integers", [](Device d) { ops::Sum(Tensor::Zeros({2}, DType::kI32, d)); },
         "sum: x must be a floating tensor, got i32[2]"},
        {"no_such_dimension", [](Device d) { ops::Sum(Tensor::Zeros({2}, DType::kF32, d), {1}); },
         "sum: there is no dimension 1 in a tensor of shape [2]"},
        {"twice",
         [](Device d) {
           ops::Max(Tensor::Zeros({2, 3}, DType::kF32, d), {1, -1});
         },
         "max: dimension -1 is given twice"},
        {"mean_of_nothing",
         [](Device d) {
           ops::Mean(Tensor::Zeros({2, 0}, DType::kF32, d), {1});
         },
         "mean over no elements, of a tensor of shape [2, 0]"},
        {"max_of_nothing", [](Device d) { ops::Max(Tensor::Zeros({0}, DType::kF32, d)); },
         "max over no elements"}};
  };
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
