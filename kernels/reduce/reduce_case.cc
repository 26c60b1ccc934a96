#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/op_case/op_case.h"
#include "kernels/reduce/reduce.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using ops::Dims;
using Elements = std::vector<double>;  // that become one, in row-major order

struct Over {
  Dims dims;  // empty: all
  bool keepdim = false;
};

struct Function {
  const char* name;
  Tensor (*run)(const Tensor& x, const Dims& dims, bool keepdim);
  double (*reference)(const Elements&);
  bool kinks = false, differentiable = true;
};

double SumOf(const Elements& e) { return std::accumulate(e.begin(), e.end(), 0.0); }

double VarianceOf(const Elements& e, int correction) {
  const double n = static_cast<double>(e.size()), mean = SumOf(e) / n;
  double sum = 0;
  for (double v : e) sum += (v - mean) * (v - mean);
  return sum / (n - correction);
}

double LogSumExpOf(const Elements& e) {
  double sum = 0;
  for (double v : e) sum += std::exp(v);
  return std::log(sum);
}

double NormOf(const Elements& e, double p) {
  double sum = 0, max = 0;
  for (double v : e) {
    sum += std::pow(std::abs(v), p == kInfinity ? 1 : p);
    max = std::max(max, std::abs(v));
  }
  return p == kInfinity ? max : std::pow(sum, 1 / p);
}

// The three that have all samples.
const Function kSum{"sum", ops::Sum, SumOf};
const Function kMean{"mean", ops::Mean,
                     [](const Elements& e) { return SumOf(e) / static_cast<double>(e.size()); }};
const Function kMax{"max", ops::Max,
                    [](const Elements& e) { return *std::max_element(e.begin(), e.end()); },
                    /*kinks=*/true};

const Function kMin{"min", ops::Min,
                    [](const Elements& e) { return *std::min_element(e.begin(), e.end()); },
                    /*kinks=*/true};
const Function kArgMax{
    "argmax", ops::ArgMax,
    [](const Elements& e) {
      return static_cast<double>(std::max_element(e.begin(), e.end()) - e.begin());
    },
    false, /*differentiable=*/false};
const Function kArgMin{
    "argmin", ops::ArgMin,
    [](const Elements& e) {
      return static_cast<double>(std::min_element(e.begin(), e.end()) - e.begin());
    },
    false, /*differentiable=*/false};
const Function kVar{
    "var",
    [](const Tensor& x, const Dims& dims, bool keepdim) { return ops::Var(x, dims, 1, keepdim); },
    [](const Elements& e) { return VarianceOf(e, 1); }};
const Function kVarOfAll{
    "var_of_all",
    [](const Tensor& x, const Dims& dims, bool keepdim) { return ops::Var(x, dims, 0, keepdim); },
    [](const Elements& e) { return VarianceOf(e, 0); }};
const Function kStd{
    "std",
    [](const Tensor& x, const Dims& dims, bool keepdim) { return ops::Std(x, dims, 1, keepdim); },
    [](const Elements& e) { return std::sqrt(VarianceOf(e, 1)); }};
const Function kNorm1{
    "norm1",
    [](const Tensor& x, const Dims& dims, bool keepdim) { return ops::Norm(x, 1, dims, keepdim); },
    [](const Elements& e) { return NormOf(e, 1); }, /*kinks=*/true};
const Function kNorm2{
    "norm2",
    [](const Tensor& x, const Dims& dims, bool keepdim) { return ops::Norm(x, 2, dims, keepdim); },
    [](const Elements& e) { return NormOf(e, 2); }};
const Function kNormInf{"norm_inf",
                        [](const Tensor& x, const Dims& dims, bool keepdim) {
                          return ops::Norm(x, kInfinity, dims, keepdim);
                        },
                        [](const Elements& e) { return NormOf(e, kInfinity); }, /*kinks=*/true};
const Function kLogSumExp{"logsumexp", ops::LogSumExp, LogSumExpOf};
const Function kProd{"prod", ops::Prod, [](const Elements& e) {
                       return std::accumulate(e.begin(), e.end(), 1.0, std::multiplies<>());
                     }};
const Function kAny{"any", ops::Any,
                    [](const Elements& e) {
                      return std::any_of(e.begin(), e.end(), [](double v) { return v != 0; }) ? 1.0
                                                                                              : 0.0;
                    },
                    false, /*differentiable=*/false};
const Function kAll{"all", ops::All,
                    [](const Elements& e) {
                      return std::all_of(e.begin(), e.end(), [](double v) { return v != 0; }) ? 1.0
                                                                                              : 0.0;
                    },
                    false, /*differentiable=*/false};

bool IsReduced(const Over& over, int dim, int ndim) {
  return over.dims.empty() || std::any_of(over.dims.begin(), over.dims.end(),
                                          [&](int d) { return (d < 0 ? d + ndim : d) == dim; });
}

RefTensor Reference(const Function& f, const Over& over, const RefTensor& x) {
  Shape kept;
  const int ndim = x.shape.ndim();
  for (int i = 0; i < ndim; ++i) {
    if (!IsReduced(over, i, ndim)) kept.push_back(x.shape[i]);
    if (IsReduced(over, i, ndim) && over.keepdim) kept.push_back(1);
  }
  RefTensor y(kept);
  std::vector<Elements> elements(y.data.size());
  for (size_t i = 0; i < x.data.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), to = 0, step = 1;
    for (int d = ndim - 1; d >= 0; --d) {
      if (!IsReduced(over, d, ndim)) {
        to += rest % x.shape[d] * step;
        step *= x.shape[d];
      }
      rest /= x.shape[d];
    }
    elements[to].push_back(x.data[i]);
  }
  for (size_t i = 0; i < y.data.size(); ++i) y.data[i] = f.reference(elements[i]);
  return y;
}

OpSample Sample(const Function& f, const std::string& name, InputSpec x, const Over& over) {
  x.differentiable = f.differentiable;
  return {.name = StrCat(f.name, "_", name),
          .inputs = {x},
          .run = [=](TensorSpan in) { return f.run(in[0], over.dims, over.keepdim); },
          .reference = [=](RefSpan in) { return Reference(f, over, in[0]); },
          .kinks = f.kinks};
}

// [rows, C] reduced over dim.
OpSample Benchmark(const Function& f, const std::string& name, int dim) {
  OpSample s = Sample(f, name, {.shape = {4096, 1024}}, {{dim}});
  s.benchmark = {.flops = 4096 * 1024,
                 .elements = 4096 * 1024,
                 .backward_flops = 4096 * 1024,
                 .backward_elements = 4096 * 1024};
  return s;
}

std::vector<OpSample> AllLayouts(const Function& f) {
  return {Sample(f, "empty", {.shape = {3, 0, 4}}, {{0}}),
          Sample(f, "scalar", {.shape = {}}, {}),
          Sample(f, "one", {.shape = {1, 1}}, {{1}}),
          Sample(f, "rows", {.shape = {5, 37}}, {{-1}}),
          Sample(f, "rows_kept", {.shape = {5, 37}}, {{-1}, true}),
          Sample(f, "columns", {.shape = {37, 5}}, {{0}}),
          Sample(f, "middle", {.shape = {3, 7, 5}}, {{1}, true}),
          Sample(f, "first_and_last", {.shape = {3, 7, 5}}, {{0, 2}}),
          Sample(f, "interleaved", {.shape = {2, 3, 4, 3}}, {{2, 0}, true}),
          Sample(f, "neighbours_across_one", {.shape = {4, 3, 1, 5}}, {{1, 3}}),
          Sample(f, "all", {.shape = {9, 11, 2}}, {}),
          Sample(f, "transposed", {.shape = {9, 4}, .non_contiguous = true}, {{1}}),
          Sample(f, "long_row", {.shape = {2, 70001}, .low = 0.25, .high = 0.75}, {{1}}),
          Sample(f, "long_columns", {.shape = {1100, 30}}, {{0}}),
          Sample(f, "wide_columns", {.shape = {1, 300, 261}}, {{1}}),
          Benchmark(f, "over_rows", 0),
          Benchmark(f, "over_columns", 1)};
}

// For those that share their kernels. `x` has the range of the inputs.
std::vector<OpSample> SomeLayouts(const Function& f, InputSpec x) {
  const auto of = [x](const Shape& shape) {
    InputSpec spec = x;
    spec.shape = shape;
    return spec;
  };
  InputSpec transposed = of({9, 4});
  transposed.non_contiguous = true;
  return {Sample(f, "empty", of({3, 0, 4}), {{0}}),
          Sample(f, "rows_kept", of({5, 37}), {{-1}, true}),
          Sample(f, "columns", of({37, 5}), {{0}}),
          Sample(f, "first_and_last", of({3, 7, 5}), {{0, 2}}),
          Sample(f, "interleaved", of({2, 3, 4, 3}), {{2, 0}, true}),
          Sample(f, "all", of({9, 11}), {}),
          Sample(f, "transposed", transposed, {{1}}),
          Sample(f, "long_row", of({2, 9001}), {{1}}),
          Sample(f, "long_columns", of({600, 35}), {{0}})};
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> samples;
  const auto add = [&](const std::vector<OpSample>& some) {
    samples.insert(samples.end(), some.begin(), some.end());
  };
  for (const Function& f : {kSum, kMean, kMax}) add(AllLayouts(f));
  for (const Function& f :
       {kMin, kArgMax, kArgMin, kVar, kVarOfAll, kStd, kNorm1, kNorm2, kNormInf}) {
    add(SomeLayouts(f, {.low = -1, .high = 1}));
  }
  add(SomeLayouts(kLogSumExp, {.low = -6, .high = 6}));
  // So that thousands of them still have a product.
  add(SomeLayouts(kProd, {.low = 0.97, .high = 1.03}));
  add(SomeLayouts(kAny, {.low = 0, .high = 2, .index = true}));
  add(SomeLayouts(kAll, {.low = 0, .high = 30, .index = true}));
  for (const Function& f :
       {kMin, kArgMax, kVarOfAll, kNorm1, kNorm2, kNormInf, kLogSumExp, kProd}) {
    samples.push_back(Sample(f, "one", {.shape = {}, .low = 0.5, .high = 1}, {}));
  }
  // Over nothing.
  // Integers.
  for (const Function& f : {kSum, kMax, kMin, kArgMax, kArgMin}) {
    const auto of = [&](const std::string& name, const Shape& shape, int dim) {
      samples.push_back(Sample(f, StrCat("integers_", name),
                               {.shape = shape, .low = -9, .high = 50, .index = true}, {{dim}}));
    };
    of("rows", {5, 37}, 1);
    of("middle", {3, 70, 5}, 1);
    of("long_row", {2, 9001}, 1);
  }
  for (const Function& f : {kSum, kNorm1, kNorm2, kLogSumExp, kProd, kAny, kAll}) {
    samples.push_back(Sample(f, "nothing", {.shape = {3, 0}}, {{1}}));
  }
  // Most of the digits of x - mean are lost in one pass.
  samples.push_back(Sample(kVar, "far_from_0", {.shape = {3, 50}, .low = 10, .high = 11}, {{1}}));
  samples.push_back(Sample(kVar, "several_blocks", {.shape = {70001}}, {}));
  for (const Function& f : {kMin, kVar, kLogSumExp}) samples.push_back(Benchmark(f, "large", 1));
  return samples;
}

std::vector<ErrorSample> Errors() {
  return {
      {"integers", [](Device d) { ops::Mean(Zeros(DType::kI32, d, 2)); },
       "mean: x must be a floating tensor, got i32[2] on cpu; cast it with To(DType::kF32)"},
      {"undefined", [](Device) { ops::Max(Tensor()); }, "max: x is undefined"},
      {"integer_variance", [](Device d) { ops::Var(Zeros(DType::kI32, d, 2)); },
       "var: x must be a floating tensor, got i32[2]"},
      {"no_such_dimension", [](Device d) { ops::Sum(Zeros(d, 2), {1}); },
       "sum: there is no dimension 1 in a tensor of shape [2]"},
      {"twice",
       [](Device d) {
         ops::Max(Zeros(d, 2, 3), {1, -1});
       },
       "max: dimension -1 is given twice"},
      {"mean_of_nothing", [](Device d) { ops::Mean(Zeros(d, 2, 0), {1}); },
       "mean over no elements, of a tensor of shape [2, 0]"},
      {"max_of_nothing", [](Device d) { ops::Max(Zeros(d, 0)); }, "max over no elements"},
      {"argmin_of_nothing", [](Device d) { ops::ArgMin(Zeros(d, 0)); }, "argmin over no elements"},
      {"norm_of_nothing", [](Device d) { ops::Norm(Zeros(d, 0), kInfinity); },
       "norm over no elements"},
      {"var_of_one", [](Device d) { ops::Var(Zeros(d, 3, 1), {1}); },
       "var over 1 elements, of a tensor of shape [3, 1], with the correction 1"},
      {"negative_correction", [](Device d) { ops::Std(Zeros(d, 3), {}, -1); },
       "std over 3 elements, of a tensor of shape [3], with the correction -1"},
      {"p", [](Device d) { ops::Norm(Zeros(d, 3), 3); }, "norm: p must be 1, 2 or infinity, got 3"},
      {"any_without_dimension", [](Device d) { ops::Any(Zeros(d, 3), {2}); },
       "any: there is no dimension 2"}};
}

const bool registered = RegisterOpCase({.name = "reduce", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
