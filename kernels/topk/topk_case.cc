#include <algorithm>
#include <numeric>

#include "kernels/op_case/op_case.h"
#include "kernels/topk/topk.h"

namespace lockstep {
namespace {

std::vector<RefTensor> Reference(const RefTensor& x, int64_t k, int dim, bool descending) {
  Shape shape = x.shape;
  const int64_t n = shape[dim];
  shape[dim] = k;
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < dim; ++i) outer *= shape[i];
  for (int i = dim + 1; i < shape.ndim(); ++i) inner *= shape[i];
  RefTensor values(shape), indices(shape);
  for (int64_t column = 0; column < outer * inner; ++column) {
    const int64_t o = column / inner, i = column % inner;
    const auto at = [&](int64_t r) { return x.data[(o * n + r) * inner + i]; };
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return descending ? at(a) > at(b) : at(a) < at(b);
    });
    for (int64_t j = 0; j < k; ++j) {
      values.data[(o * k + j) * inner + i] = at(order[j]);
      indices.data[(o * k + j) * inner + i] = static_cast<double>(order[j]);
    }
  }
  return {values, indices};
}

// So far apart that differences do not change the order.
InputSpec Wide(const Shape& shape) { return {.shape = shape, .low = -100, .high = 100}; }

OpSample TopK(const std::string& name, const InputSpec& x, int64_t k, int dim, bool largest) {
  const int at = dim < 0 ? dim + x.shape.ndim() : dim;
  return {.name = StrCat(largest ? "largest_" : "smallest_", name),
          .inputs = {x},
          .run =
              [=](TensorSpan in) {
                const auto [values, indices] = ops::TopK(in[0], k, dim, largest);
                return std::vector{values, indices};
              },
          .reference = [=](RefSpan in) { return Reference(in[0], k, at, largest); },
          .kinks = true};
}

OpSample Sort(const std::string& name, const InputSpec& x, int dim, bool descending) {
  const int at = dim < 0 ? dim + x.shape.ndim() : dim;
  OpSample s = TopK(name, x, x.shape[at], dim, descending);
  s.name = StrCat(descending ? "descending_" : "ascending_", name);
  s.run = [=](TensorSpan in) {
    const auto [values, indices] = ops::Sort(in[0], dim, descending);
    return std::vector{values, indices};
  };
  return s;
}

std::vector<OpSample> Samples() {
  OpSample large = TopK("large", {.shape = {64, 50257}}, 50, -1, true);
  large.benchmark = {
      .flops = 64.0 * 50257, .elements = 64.0 * 50257, .backward_elements = 64.0 * 50257};
  // Each value many times.
  OpSample ties = TopK("ties", {.shape = {3, 200}, .low = 0, .high = 5}, 150, 1, true);
  ties.inputs[0].index = true;
  ties.run = [](TensorSpan in) {
    const auto [values, indices] = ops::TopK(in[0].To(DType::kBF16), 150, 1);
    return std::vector{values, indices};
  };
  return {TopK("empty", {.shape = {3, 4}}, 0, -1, true),
          TopK("no_rows", {.shape = {0, 4}}, 2, 1, true), TopK("one", {.shape = {1}}, 1, 0, true),
          TopK("rows", Wide({5, 37}), 4, -1, true), TopK("rows", Wide({5, 37}), 4, -1, false),
          TopK("columns", Wide({37, 5}), 6, 0, true), TopK("middle", Wide({2, 9, 3}), 3, 1, false),
          TopK("transposed", {.shape = {5, 9}, .low = -100, .high = 100, .non_contiguous = true}, 2,
               1, true),
          // More rows than a byte counts; many equal elements in 16 bits.
          TopK("many_rows", Wide({300, 7}), 3, 1, true),
          TopK("long", {.shape = {2, 3001}, .low = -1e-3, .high = 1e3}, 40, 1, true), ties,
          Sort("empty", {.shape = {2, 0}}, 1, false), Sort("rows", Wide({4, 50}), -1, false),
          Sort("rows", Wide({4, 50}), -1, true), Sort("columns", Wide({19, 6}), 0, true), large};
}

std::vector<ErrorSample> Errors() {
  return {{"too_many", [](Device d) { ops::TopK(Zeros(d, 2, 3), 4); },
           "topk: dimension 1 of a tensor of shape [2, 3] has 3 elements, not 4"},
          {"negative", [](Device d) { ops::TopK(Zeros(d, 2, 3), -1); },
           "topk: dimension 1 of a tensor of shape [2, 3] has 3 elements, not -1"},
          {"integers", [](Device d) { ops::Sort(Zeros(DType::kI32, d, 2)); },
           "sort: x must be a floating tensor, got i32[2]"},
          {"no_such_dimension", [](Device d) { ops::TopK(Zeros(d, 2, 3), 1, -3); },
           "topk: there is no dimension -3 in a tensor of shape [2, 3]"}};
}

// Nothing is computed.
const bool registered = RegisterOpCase(
    {.name = "topk", .samples = Samples, .errors = Errors, .tolerances = NoTolerance()});

}  // namespace
}  // namespace lockstep
