#include "kernels/cumsum/cumsum.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

RefTensor Reference(const RefTensor& x, int dim) {
  int64_t step = 1;
  for (int i = dim + 1; i < x.shape.ndim(); ++i) step *= x.shape[i];
  RefTensor y = x;
  for (int64_t i = 0; i < static_cast<int64_t>(y.data.size()); ++i) {
    if (i / step % x.shape[dim] > 0) y.data[i] += y.data[i - step];
  }
  return y;
}

OpSample Sample(const std::string& name, const InputSpec& x, int dim) {
  const int at = dim < 0 ? dim + x.shape.ndim() : dim;
  return {.name = name,
          .inputs = {x},
          .run = [dim](TensorSpan in) { return ops::CumSum(in[0], dim); },
          .reference = [at](RefSpan in) { return Reference(in[0], at); }};
}

OpSample Benchmark(const std::string& name, int dim) {
  OpSample s = Sample(name, {.shape = {4096, 4096}}, dim);
  s.benchmark = {.flops = 4096 * 4096,
                 .elements = 2.0 * 4096 * 4096,
                 .backward_flops = 4096 * 4096,
                 .backward_elements = 2.0 * 4096 * 4096};
  return s;
}

std::vector<OpSample> Samples() {
  return {Sample("empty", {.shape = {3, 0, 2}}, 1), Sample("empty_rows", {.shape = {0, 4}}, -1),
          Sample("one", {.shape = {1}}, 0), Sample("rows", {.shape = {11, 37}}, -1),
          Sample("whole_warp", {.shape = {2, 64}}, 1), Sample("columns", {.shape = {37, 5}}, 0),
          Sample("middle", {.shape = {3, 7, 5}}, 1), Sample("single_term", {.shape = {3, 1, 5}}, 1),
          Sample("transposed", {.shape = {9, 4}, .non_contiguous = true}, 0),
          // Integers.
          Sample("i32", {.shape = {3, 9}, .low = -5, .high = 6, .index = true}, 1),
          Sample("long_row", {.shape = {2, 9001}, .low = 0, .high = 1}, 1),
          Sample("long_columns", {.shape = {600, 70}, .low = 0, .high = 1}, 0),
          Benchmark("large_rows", 1), Benchmark("large_columns", 0)};
}

std::vector<ErrorSample> Errors() {
  return {{"undefined", [](Device) { ops::CumSum(Tensor(), 0); }, "cumsum: x is undefined"},
          {"no_such_dimension", [](Device d) { ops::CumSum(Zeros(d, 2, 3), 2); },
           "cumsum: there is no dimension 2 in a tensor of shape [2, 3]"},
          {"scalar", [](Device d) { ops::CumSum(Zeros(d), 0); },
           "cumsum: there is no dimension 0 in a tensor of shape []"}};
}

const bool registered = RegisterOpCase({.name = "cumsum", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
