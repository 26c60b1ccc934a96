#include <algorithm>

#include "kernels/matmul/matmul.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// The number of the matrix of x that stands at matrix `at` of the leading dimensions.
int64_t MatrixOf(const Shape& x, const Shape& leading, int64_t at) {
  int64_t matrix = 0, step = 1;
  for (int d = 1; d <= leading.ndim(); ++d) {  // from the last on
    const int64_t size = d + 2 <= x.ndim() ? x[-d - 2] : 1;
    matrix += (size == 1 ? 0 : at % leading[-d]) * step;
    step *= size;
    at /= leading[-d];
  }
  return matrix;
}

std::vector<RefTensor> Reference(RefSpan in) {
  Shape a = in[0].shape, b = in[1].shape;
  const bool row = a.ndim() == 1, column = b.ndim() == 1;
  if (row) a = {1, a[0]};
  if (column) b = {b[0], 1};
  const int64_t m = a[-2], k = a[-1], n = b[-1];
  Shape leading;
  for (int d = std::max(a.ndim(), b.ndim()); d > 2; --d) {
    const int64_t of_a = d <= a.ndim() ? a[-d] : 1, of_b = d <= b.ndim() ? b[-d] : 1;
    leading.push_back(of_a == 1 ? of_b : of_a);
  }
  Shape shape = leading;
  if (!row) shape.push_back(m);
  if (!column) shape.push_back(n);
  RefTensor c(shape);
  for (size_t at = 0; at < c.data.size(); ++at) {
    const int64_t j = static_cast<int64_t>(at) % n, i = static_cast<int64_t>(at) / n % m;
    const int64_t batch = static_cast<int64_t>(at) / (m * n);
    const double* left = in[0].data.data() + (MatrixOf(a, leading, batch) * m + i) * k;
    const double* right = in[1].data.data() + MatrixOf(b, leading, batch) * k * n + j;
    for (int64_t l = 0; l < k; ++l) c.data[at] += left[l] * right[l * n];
  }
  return {c};
}

OpSample Sample(const std::string& name, const Shape& a, const Shape& b) {
  return {.name = name,
          .inputs = {{.shape = a}, {.shape = b}},
          .run = [](TensorSpan in) { return ops::MatMul(in[0], in[1]); },
          .reference = Reference};
}

OpSample Benchmark(const std::string& name, const Shape& a, const Shape& b) {
  OpSample s = Sample(name, a, b);
  s.benchmark = {.flops = 2.0 * a.numel() * b[-1],
                 .elements = 1.0 * (a.numel() + b.numel() + a.numel() / a[-1] * b[-1])};
  return s;
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> s = {
      Sample("empty", {3, 0, 4}, {3, 4, 2}),
      Sample("no_batch", {0, 2, 4}, {0, 4, 2}),
      Sample("no_inner", {2, 0}, {0, 3}),
      Sample("one", {1, 1}, {1, 1}),
      Sample("odd", {7, 13}, {13, 5}),
      Sample("batched", {2, 3, 5, 9}, {2, 3, 9, 11}),
      Sample("shared_factor", {2, 3, 5, 9}, {9, 11}),
      Sample("shared_with_ones", {2, 3, 5, 9}, {1, 9, 4}),
      Sample("shared_first", {5, 9}, {2, 3, 9, 4}),
      Sample("broadcast", {2, 1, 5, 9}, {3, 9, 4}),
      Sample("broadcast_both", {4, 1, 2, 3}, {1, 3, 3, 2}),
      Sample("broadcast_to_empty", {1, 2, 3}, {0, 3, 2}),
      Sample("row", {7}, {7, 5}),
      Sample("rows", {7}, {2, 3, 7, 5}),
      Sample("column", {5, 7}, {7}),
      Sample("columns", {2, 3, 5, 7}, {7}),
      Sample("dot", {33}, {33}),
      Sample("dot_of_nothing", {0}, {0}),
  };
  OpSample strided = Sample("transposed", {3, 6, 8}, {3, 8, 4});
  strided.inputs[0].non_contiguous = strided.inputs[1].non_contiguous = true;
  s.push_back(strided);
  OpSample strided_broadcast = Sample("transposed_broadcast", {3, 1, 6, 8}, {5, 8, 4});
  strided_broadcast.inputs[0].non_contiguous = strided_broadcast.inputs[1].non_contiguous = true;
  s.push_back(strided_broadcast);
  s.push_back(Benchmark("square_1024", {1024, 1024}, {1024, 1024}));
  s.push_back(Benchmark("gpt2_scores", {4, 12, 1024, 64}, {4, 12, 64, 1024}));
  OpSample tiles = Sample("several_tiles", {2, 140, 30}, {2, 30, 110});
  tiles.finite_differences = false;  // slow, and the other samples have them
  s.push_back(tiles);
  return s;
}

std::vector<ErrorSample> Errors() {
  return {
      {"scalar", [](Device d) { ops::MatMul(Zeros(d), Zeros(d, 3, 2)); },
       "matmul: a must be a floating tensor [..., M, K] or [K], got f32[]"},
      {"vector", [](Device d) { ops::MatMul(Zeros(d, 3), Zeros(d, 4, 3)); },
       "matmul: b must be [..., 3, N] or [3] for a of shape [3], got f32[4, 3]"},
      {"inner", [](Device d) { ops::MatMul(Zeros(d, 4, 3), Zeros(d, 4, 3)); },
       "matmul: b must be [..., 3, N] or [3] for a of shape [4, 3], got f32[4, 3]"},
      {"mixed", [](Device d) { ops::MatMul(Zeros(d, 4, 3), Zeros(DType::kF64, d, 3, 2)); },
       "matmul: a and b must have the same dtype and device, got f32[4, 3]"},
      {"batch", [](Device d) { ops::MatMul(Zeros(d, 2, 4, 3), Zeros(d, 5, 3, 2)); },
       "matmul: leading dimensions: shapes [2] and [5] do not broadcast"},
  };
}

const bool registered = RegisterOpCase({.name = "matmul", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
