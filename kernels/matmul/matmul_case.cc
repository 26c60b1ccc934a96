#include "kernels/matmul/matmul.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

std::vector<RefTensor> Reference(std::span<const RefTensor> in) {
  const RefTensor &a = in[0], &b = in[1];
  const int64_t m = a.shape[-2], k = a.shape[-1], n = b.shape[-1];
  Shape shape = a.shape;
  shape[-1] = n;
  RefTensor c(shape);
  for (size_t at = 0; at < c.data.size(); ++at) {
    const int64_t j = static_cast<int64_t>(at) % n, i = static_cast<int64_t>(at) / n % m;
    const int64_t batch = static_cast<int64_t>(at) / (m * n);
    const double* row = a.data.data() + (batch * m + i) * k;
    const double* column = b.data.data() + (b.shape.ndim() == 2 ? 0 : batch * k * n) + j;
    for (int64_t l = 0; l < k; ++l) c.data[at] += row[l] * column[l * n];
  }
  return {c};
}

OpSample Sample(const std::string& name, const Shape& a, const Shape& b) {
  return {.name = name,
          .inputs = {{.shape = a}, {.shape = b}},
          .run = [](std::span<const Tensor> in) { return std::vector{ops::MatMul(in[0], in[1])}; },
          .reference = Reference};
}

OpSample Benchmark(const std::string& name, const Shape& a, const Shape& b) {
  OpSample s = Sample(name, a, b);
  s.flops = 2.0 * a.numel() * b[-1];
  s.elements_moved = 1.0 * (a.numel() + b.numel() + a.numel() / a[-1] * b[-1]);
  s.benchmark_only = true;
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
  };
  OpSample strided = Sample("transposed", {3, 6, 8}, {3, 8, 4});
  strided.inputs[0].non_contiguous = strided.inputs[1].non_contiguous = true;
  s.push_back(strided);
  s.push_back(Benchmark("square_1024", {1024, 1024}, {1024, 1024}));
  s.push_back(Benchmark("gpt2_scores", {4, 12, 1024, 64}, {4, 12, 64, 1024}));
  OpSample tiles = Sample("several_tiles", {2, 140, 30}, {2, 30, 110});
  tiles.finite_differences = false;  // slow, and the other samples have them
  s.push_back(tiles);
  return s;
}

std::vector<ErrorSample> Errors() {
  const auto zeros = [](const Shape& shape, Device d, DType dtype = DType::kF32) {
    return Tensor::Zeros(shape, dtype, d);
  };
  return {
      {"vector",
       [=](Device d) {
         ops::MatMul(zeros({3}, d), zeros({3, 2}, d));
       },
       "matmul: a must be a floating tensor [..., M, K], got f32[3]"},
      {"inner",
       [=](Device d) {
         ops::MatMul(zeros({4, 3}, d), zeros({4, 3}, d));
       },
       "matmul: b must be [..., 3, N] for a of shape [4, 3], got f32[4, 3]"},
      {"mixed",
       [=](Device d) {
         ops::MatMul(zeros({4, 3}, d), zeros({3, 2}, d, DType::kF64));
       },
       "matmul: a and b must have the same dtype and device, got f32[4, 3]"},
      {"batch",
       [=](Device d) {
         ops::MatMul(zeros({2, 4, 3}, d), zeros({5, 3, 2}, d));
       },
       "matmul: b must be [K, N] or have the leading dimensions of a, got [2, 4, 3] and [5, 3, 2]"},
  };
}

OpCase Make() {
  OpCase c;
  c.name = "matmul";
  c.dtypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  c.samples = Samples;
  c.errors = Errors;
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
