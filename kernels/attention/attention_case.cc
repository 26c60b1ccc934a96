#include <array>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// The training step in which samples with dropout run.
constexpr uint64_t kSeed = 99, kSite = 12345;
constexpr int64_t kStep = 7, kFirstSample = 3;

// q [B, S, H, D] of the last positions, k and v [B, T, G, D], by the definition: all scores of a
// row, then their softmax.
RefTensor Attend(const RefTensor& q, const RefTensor& k, const RefTensor& v, double dropout) {
  const int64_t length = k.shape[1], heads = q.shape[2], d = q.shape[3], groups = k.shape[2];
  const int64_t queries = q.shape[1];
  const Philox random(kSeed);
  RefTensor y(q.shape);
  for (int64_t row = 0; row < q.shape[0] * queries * heads; ++row) {
    const int64_t h = row % heads, b = row / heads / queries;
    const int64_t i = length - queries + row / heads % queries;
    const auto other = [&](int64_t j) {
      return ((b * length + j) * groups + h / (heads / groups)) * d;
    };
    std::vector<double> p(static_cast<size_t>(i) + 1);
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= i; ++j) {
      for (int64_t l = 0; l < d; ++l) p[j] += q.data[row * d + l] * k.data[other(j) + l];
      p[j] /= std::sqrt(static_cast<double>(d));
      largest = std::max(largest, p[j]);
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    const uint64_t stream = AttentionDropoutStream(kSite, kStep, kFirstSample + b, h);
    for (int64_t j = 0; j <= i; ++j) {
      const bool kept = AttentionKeeps(random, stream, i, j, DropoutThreshold(dropout));
      const double mask = kept ? 1 / (1 - dropout) : 0;
      for (int64_t l = 0; l < d; ++l)
        y.data[row * d + l] += p[j] / sum * mask * v.data[other(j) + l];
    }
  }
  return y;
}

std::vector<RefTensor> JointReference(const RefTensor& qkv, int64_t heads, int64_t kv_heads,
                                      double dropout) {
  const int64_t width = qkv.shape[2], d = width / (heads + 2 * kv_heads);
  const int64_t rows = qkv.shape[0] * qkv.shape[1];
  const std::array<int64_t, 3> sizes{heads, kv_heads, kv_heads};
  std::vector<RefTensor> parts;
  int64_t begin = 0;
  for (int64_t n : sizes) {
    RefTensor part(Shape{qkv.shape[0], qkv.shape[1], n, d});
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < n * d; ++i) {
        part.data[row * n * d + i] = qkv.data[row * width + begin + i];
      }
    }
    begin += n * d;
    parts.push_back(part);
  }
  RefTensor y = Attend(parts[0], parts[1], parts[2], dropout);
  y.shape = {qkv.shape[0], qkv.shape[1], heads * d};
  return {y};
}

// Calls f in the training step.
template <class F>
std::vector<Tensor> InTraining(Device device, const F& f) {
  StepState state(device, kSeed);
  state.Begin(kStep, 0.1);
  state.SetFirstSample(kFirstSample);
  const TrainingScope scope(state);
  return {f()};
}

OpSample JointGrouped(const std::string& name, int64_t batch, int64_t length, int64_t heads,
                      int64_t kv_heads, int64_t d, double dropout = 0) {
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = {batch, length, (heads + 2 * kv_heads) * d}, .low = -2, .high = 2}};
  s.run = [=](std::span<const Tensor> in) {
    return InTraining(in[0].device(), [&] {
      return ops::CausalAttention(in[0], heads, kv_heads, {.dropout = dropout, .site = kSite});
    });
  };
  s.reference = [=](std::span<const RefTensor> in) {
    return JointReference(in[0], heads, kv_heads, dropout);
  };
  return s;
}

OpSample Sample(const std::string& name, int64_t batch, int64_t length, int64_t heads, int64_t d,
                double dropout = 0) {
  return JointGrouped(name, batch, length, heads, heads, d, dropout);
}

// length: of the keys; 0: as many as queries.
OpSample Grouped(const std::string& name, const Shape& q, int64_t groups, double dropout = 0,
                 int64_t length = 0) {
  const Shape k{q[0], length > 0 ? length : q[1], groups, q[3]};
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = q, .low = -2, .high = 2},
              {.shape = k, .low = -2, .high = 2},
              {.shape = k, .low = -2, .high = 2}};
  s.run = [=](std::span<const Tensor> in) {
    return InTraining(in[0].device(), [&] {
      return ops::CausalAttention(in[0], in[1], in[2], {.dropout = dropout, .site = kSite});
    });
  };
  s.reference = [=](std::span<const RefTensor> in) {
    return std::vector{Attend(in[0], in[1], in[2], dropout)};
  };
  return s;
}

// Counts the FLOPs of only the half of the scores that causality leaves.
OpSample Benchmark(const std::string& name, int64_t batch, int64_t length, int64_t heads, int64_t d,
                   double dropout = 0) {
  OpSample s = Sample(name, batch, length, heads, d, dropout);
  s.flops = 2.0 * batch * heads * length * (length + 1) * d;
  s.elements_moved = 4.0 * batch * length * heads * d;
  s.benchmark_only = true;
  return s;
}

// Outside of a TrainingScope dropout does nothing.
OpSample Evaluation() {
  OpSample s = Sample("evaluation", 1, 5, 1, 4);
  s.run = [](std::span<const Tensor> in) {
    return std::vector{ops::CausalAttention(in[0], 1, 1, {.dropout = 0.5, .site = kSite})};
  };
  return s;
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> s = {
      Sample("empty", 0, 3, 2, 4),
      Sample("no_positions", 2, 0, 2, 4),
      Sample("one", 1, 1, 1, 1),
      Sample("one_position", 3, 1, 2, 8),
      Sample("odd", 2, 13, 3, 5),
      Sample("tile", 1, 64, 1, 16),
      Sample("tile_and_one", 1, 65, 2, 3),
      Sample("several_tiles", 1, 150, 1, 20),
      Sample("dropout", 2, 21, 2, 6, 0.3),
      Sample("dropout_several_tiles", 1, 140, 1, 4, 0.5),
      Sample("whole_packs", 1, 100, 2, 64),
      Sample("wide_heads", 1, 40, 2, 72),
      Sample("very_wide_heads", 1, 37, 1, 136),
      Grouped("grouped", {2, 19, 4, 3}, 2),
      JointGrouped("joint_grouped", 2, 19, 6, 2, 3),
      JointGrouped("joint_grouped_several_tiles", 1, 70, 3, 1, 5, 0.2),
      Grouped("grouped_several_tiles", {1, 70, 3, 5}, 1, 0.2),
      Grouped("last_query", {2, 1, 2, 4}, 1, 0, 9),
      Grouped("last_queries", {2, 5, 4, 3}, 2, 0.3, 13),
      Grouped("last_queries_across_tiles", {1, 40, 2, 8}, 1, 0, 100),
      Grouped("last_queries_several_tiles", {1, 130, 2, 5}, 1, 0.2, 210),
      Grouped("last_queries_whole_tiles", {1, 64, 2, 64}, 2, 0, 192),
      Evaluation(),
  };
  OpSample strided = Sample("transposed", 3, 7, 2, 4);
  strided.inputs[0].non_contiguous = true;
  s.push_back(strided);
  OpSample strided_parts = Grouped("transposed_parts", {2, 7, 4, 3}, 2);
  for (InputSpec& x : strided_parts.inputs) x.non_contiguous = true;
  s.push_back(strided_parts);
  // Scores around 144: their exponentials overflow unless the largest is subtracted. Forward only:
  // gradients are sums of terms that nearly cancel.
  OpSample large = Sample("large_scores", 1, 70, 1, 16);
  large.inputs[0] = {.shape = {1, 70, 48}, .low = 5, .high = 7, .differentiable = false};
  s.push_back(large);
  s.push_back(Benchmark("char", 12, 64, 4, 32));
  s.push_back(Benchmark("char_dropout", 12, 64, 4, 32, 0.1));
  s.push_back(Benchmark("gpt2_256", 4, 256, 12, 64));
  s.push_back(Benchmark("gpt2_1024", 1, 1024, 12, 64));
  return s;
}

std::vector<ErrorSample> Errors() {
  const auto zeros = [](const Shape& shape, Device d, DType dtype = DType::kF32) {
    return Tensor::Zeros(shape, dtype, d);
  };
  return {
      {"matrix",
       [=](Device d) {
         ops::CausalAttention(zeros({4, 6}, d), 1);
       },
       "attention: qkv must be a floating tensor [B, T, (n_head + 2 n_kv_head) D], got f32[4, 6]"},
      {"heads",
       [=](Device d) {
         ops::CausalAttention(zeros({1, 4, 24}, d), 3);
       },
       "attention: the last size of qkv must be a positive multiple of n_head + 2 n_kv_head = 9"},
      {"no_heads",
       [=](Device d) {
         ops::CausalAttention(zeros({1, 4, 24}, d), 0);
       },
       "attention: n_head must be a positive multiple of n_kv_head, got 0 and 0"},
      {"kv_heads",
       [=](Device d) {
         ops::CausalAttention(zeros({1, 4, 24}, d), 3, 2);
       },
       "attention: n_head must be a positive multiple of n_kv_head, got 3 and 2"},
      {"dropout",
       [=](Device d) {
         ops::CausalAttention(zeros({1, 4, 24}, d), 2, 2, {.dropout = 1.0});
       },
       "attention: dropout must be in [0, 1), got 1"},
      {"lengths",
       [=](Device d) {
         ops::CausalAttention(zeros({1, 4, 2, 3}, d), zeros({1, 3, 2, 3}, d),
                              zeros({1, 3, 2, 3}, d));
       },
       "attention: k and v must be [B, T, G, D] = [1, 4 or more, G, 3], got f32[1, 3, 2, 3]"},
      {"no_queries",
       [=](Device d) {
         ops::CausalAttention(zeros({1, 0, 2, 3}, d), zeros({1, 3, 2, 3}, d),
                              zeros({1, 3, 2, 3}, d));
       },
       "attention: no queries, but keys"},
      {"groups",
       [=](Device d) {
         ops::CausalAttention(zeros({1, 4, 3, 3}, d), zeros({1, 4, 2, 3}, d),
                              zeros({1, 4, 2, 3}, d));
       },
       "attention: the heads of q must be a positive multiple of those of k and v, got 3 and 2"},
      {"mixed",
       [=](Device d) {
         ops::CausalAttention(zeros({1, 4, 2, 3}, d), zeros({1, 4, 2, 3}, d),
                              zeros({1, 4, 2, 3}, d, DType::kF64));
       },
       "attention: q, k and v must have the same dtype and device"},
  };
}

OpCase Make() {
  OpCase c;
  c.name = "attention";
  c.dtypes = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
  c.samples = Samples;
  c.errors = Errors;
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
