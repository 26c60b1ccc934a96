#include <array>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// The training step in which samples with dropout run.
constexpr uint64_t kSeed = 99, kSite = 12345;
constexpr int64_t kStep = 7, kFirstSample = 3;

// What a sample needs in addition to plain attention.
struct Rules {
  double dropout = 0, scale = 0, softcap = 0;
  int64_t window = 0;
  int64_t documents =
      0;  // in a row: packed, and cut elsewhere in each row; 0: first_key is undefined

  // Where the document of sample b's position i begins.
  int64_t FirstKey(int64_t b, int64_t i, int64_t length) const {
    int64_t first = 0;
    for (int64_t document = 1; document < documents; ++document) {
      const int64_t begin = document * length / documents + 5 * b % (length / documents);
      if (begin <= i) first = begin;
    }
    return first;
  }

  // For the last `queries` of `length` positions.
  ops::CausalAttentionOptions Options(int64_t batch, int64_t queries, int64_t length,
                                      Device device) const {
    ops::CausalAttentionOptions options{
        .dropout = dropout, .site = kSite, .scale = scale, .softcap = softcap, .window = window};
    if (documents == 0) return options;
    std::vector<int32_t> first_key;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = length - queries; i < length; ++i) {
        first_key.push_back(static_cast<int32_t>(FirstKey(b, i, length)));
      }
    }
    const Shape shape{batch, queries};
    options.first_key = device.is_meta() ? Tensor::Empty(shape, DType::kI32, device)
                                         : Tensor::FromVector(first_key, shape, device);
    return options;
  }
};

// q [B, S, H, D] of the last positions, k and v [B, T, G, D], by the definition: all scores of a
// row, then their softmax.
RefTensor Attend(const RefTensor& q, const RefTensor& k, const RefTensor& v, const Rules& rules) {
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
    std::vector<double> p(static_cast<size_t>(i) + 1, -INFINITY);
    double largest = -INFINITY, sum = 0;
    for (int64_t j = rules.FirstKey(b, i, length); j <= i; ++j) {
      if (rules.window > 0 && j <= i - rules.window) continue;
      double score = 0;
      for (int64_t l = 0; l < d; ++l) score += q.data[row * d + l] * k.data[other(j) + l];
      score *= rules.scale > 0 ? rules.scale : 1 / std::sqrt(static_cast<double>(d));
      p[j] = rules.softcap > 0 ? rules.softcap * std::tanh(score / rules.softcap) : score;
      largest = std::max(largest, p[j]);
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    const uint64_t stream = AttentionDropoutStream(kSite, kStep, kFirstSample + b, h);
    for (int64_t j = 0; j <= i; ++j) {
      const bool kept = AttentionKeeps(random, stream, i, j, DropoutThreshold(rules.dropout));
      const double mask = kept ? 1 / (1 - rules.dropout) : 0;
      for (int64_t l = 0; l < d; ++l)
        y.data[row * d + l] += p[j] / sum * mask * v.data[other(j) + l];
    }
  }
  return y;
}

std::vector<RefTensor> JointReference(const RefTensor& qkv, int64_t heads, int64_t kv_heads,
                                      const Rules& rules) {
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
  RefTensor y = Attend(parts[0], parts[1], parts[2], rules);
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
                      int64_t kv_heads, int64_t d, const Rules& rules = {}) {
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = {batch, length, (heads + 2 * kv_heads) * d}, .low = -2, .high = 2}};
  s.run = [=](TensorSpan in) {
    return InTraining(in[0].device(), [&] {
      return ops::CausalAttention(in[0], heads, kv_heads,
                                  rules.Options(batch, length, length, in[0].device()));
    });
  };
  s.reference = [=](RefSpan in) { return JointReference(in[0], heads, kv_heads, rules); };
  return s;
}

OpSample Sample(const std::string& name, int64_t batch, int64_t length, int64_t heads, int64_t d,
                const Rules& rules = {}) {
  return JointGrouped(name, batch, length, heads, heads, d, rules);
}

// length: of the keys; 0: as many as queries.
OpSample Grouped(const std::string& name, const Shape& q, int64_t groups, const Rules& rules = {},
                 int64_t length = 0) {
  const Shape k{q[0], length > 0 ? length : q[1], groups, q[3]};
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = q, .low = -2, .high = 2},
              {.shape = k, .low = -2, .high = 2},
              {.shape = k, .low = -2, .high = 2}};
  s.run = [=](TensorSpan in) {
    return InTraining(in[0].device(), [&] {
      return ops::CausalAttention(in[0], in[1], in[2],
                                  rules.Options(q[0], q[1], k[1], in[0].device()));
    });
  };
  s.reference = [=](RefSpan in) { return Attend(in[0], in[1], in[2], rules); };
  return s;
}

// Counts the FLOPs of only the half of the scores that causality leaves.
OpSample Benchmark(const std::string& name, int64_t batch, int64_t length, int64_t heads, int64_t d,
                   const Rules& rules = {}) {
  OpSample s = Sample(name, batch, length, heads, d, rules);
  s.benchmark = {.flops = 2.0 * batch * heads * length * (length + 1) * d,
                 .elements = 4.0 * batch * length * heads * d};
  return s;
}

// Outside of a TrainingScope dropout does nothing.
OpSample Evaluation() {
  OpSample s = Sample("evaluation", 1, 5, 1, 4);
  s.run = [](TensorSpan in) {
    return ops::CausalAttention(in[0], 1, 1, {.dropout = 0.5, .site = kSite});
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
      Sample("dropout", 2, 21, 2, 6, {.dropout = 0.3}),
      Sample("dropout_several_tiles", 1, 140, 1, 4, {.dropout = 0.5}),
      Sample("whole_packs", 1, 100, 2, 64),
      Sample("wide_heads", 1, 40, 2, 72),
      Sample("very_wide_heads", 1, 37, 1, 136),
      Grouped("grouped", {2, 19, 4, 3}, 2),
      JointGrouped("joint_grouped", 2, 19, 6, 2, 3),
      JointGrouped("joint_grouped_several_tiles", 1, 70, 3, 1, 5, {.dropout = 0.2}),
      Grouped("grouped_several_tiles", {1, 70, 3, 5}, 1, {.dropout = 0.2}),
      Grouped("last_query", {2, 1, 2, 4}, 1, {}, 9),
      Grouped("last_queries", {2, 5, 4, 3}, 2, {.dropout = 0.3}, 13),
      Grouped("last_queries_across_tiles", {1, 40, 2, 8}, 1, {}, 100),
      Grouped("last_queries_several_tiles", {1, 130, 2, 5}, 1, {.dropout = 0.2}, 210),
      Grouped("last_queries_whole_tiles", {1, 64, 2, 64}, 2, {}, 192),
      Evaluation(),
      Sample("scale", 2, 13, 2, 8, {.scale = 0.1}),
      // Inputs go up to 2: scores of 8 numbers have a standard deviation of 3.8 at scale 1.
      Sample("softcap", 2, 13, 2, 8, {.scale = 1, .softcap = 1.5}),
      Sample("softcap_several_tiles", 1, 150, 2, 16, {.softcap = 3}),
      Sample("window", 2, 21, 2, 6, {.window = 5}),
      Sample("window_of_one", 1, 9, 1, 8, {.window = 1}),
      Sample("window_in_several_tiles", 1, 150, 1, 8, {.window = 20}),
      Sample("window_across_tiles", 1, 270, 2, 16, {.window = 100}),
      Sample("window_of_a_tile", 1, 200, 1, 64, {.window = 64}),
      Sample("window_beyond_the_row", 1, 20, 1, 8, {.window = 21}),
      Sample("documents", 3, 30, 2, 8, {.documents = 4}),
      Sample("documents_several_tiles", 2, 200, 2, 16, {.documents = 3}),
      Sample("tiny_documents", 2, 140, 1, 8, {.documents = 40}),
      JointGrouped("everything", 2, 150, 4, 2, 8,
                   {.dropout = 0.2, .scale = 0.6, .softcap = 2, .window = 40, .documents = 3}),
      JointGrouped("everything_in_odd_heads", 2, 140, 3, 1, 5,
                   {.dropout = 0.2, .scale = 0.6, .softcap = 2, .window = 50, .documents = 2}),
      Grouped("everything_in_wide_heads", {1, 70, 2, 136}, 1,
              {.dropout = 0.2, .softcap = 4, .window = 30, .documents = 2}),
      Grouped("last_queries_with_everything", {2, 70, 4, 16}, 2,
              {.dropout = 0.2, .softcap = 2, .window = 60, .documents = 3}, 210),
      // Keys that no query sees.
      Grouped("last_queries_with_a_window", {2, 9, 2, 8}, 1, {.window = 20}, 150),
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
  s.push_back(Benchmark("char_dropout", 12, 64, 4, 32, {.dropout = 0.1}));
  s.push_back(Benchmark("gpt2_256", 4, 256, 12, 64));
  s.push_back(Benchmark("gpt2_1024", 1, 1024, 12, 64));
  return s;
}

std::vector<ErrorSample> Errors() {
  const auto attend_documents = [=](const std::vector<int32_t>& first_key) {
    ops::CausalAttention(Zeros(kCpu, 1, 3, 24), 2, 2,
                         {.first_key = Tensor::FromVector(first_key, {1, 3}, kCpu)});
  };
  return {
      {"matrix", [=](Device d) { ops::CausalAttention(Zeros(d, 4, 6), 1); },
       "attention: qkv must be a floating tensor [B, T, (n_head + 2 n_kv_head) D], got f32[4, 6]"},
      {"heads", [=](Device d) { ops::CausalAttention(Zeros(d, 1, 4, 24), 3); },
       "attention: the last size of qkv must be a positive multiple of n_head + 2 n_kv_head = 9"},
      {"no_heads", [=](Device d) { ops::CausalAttention(Zeros(d, 1, 4, 24), 0); },
       "attention: n_head must be a positive multiple of n_kv_head, got 0 and 0"},
      {"kv_heads", [=](Device d) { ops::CausalAttention(Zeros(d, 1, 4, 24), 3, 2); },
       "attention: n_head must be a positive multiple of n_kv_head, got 3 and 2"},
      {"dropout",
       [=](Device d) { ops::CausalAttention(Zeros(d, 1, 4, 24), 2, 2, {.dropout = 1.0}); },
       "attention: dropout must be in [0, 1), got 1"},
      {"window", [=](Device d) { ops::CausalAttention(Zeros(d, 1, 4, 24), 2, 2, {.window = -1}); },
       "attention: window must be a positive number, or 0 for the default, got -1"},
      {"softcap",
       [=](Device d) { ops::CausalAttention(Zeros(d, 1, 4, 24), 2, 2, {.softcap = NAN}); },
       "attention: softcap must be a positive number, or 0 for the default, got nan"},
      {"first_key_shape",
       [=](Device d) {
         ops::CausalAttention(Zeros(d, 2, 4, 24), 2, 2, {.first_key = Zeros(DType::kI32, d, 4)});
       },
       "attention: first_key must be i32[2, 4], a key's position for each query"},
      {"first_key_dtype",
       [=](Device d) {
         ops::CausalAttention(Zeros(d, 2, 4, 24), 2, 2, {.first_key = Zeros(DType::kI64, d, 2, 4)});
       },
       "attention: first_key must be i32[2, 4], a key's position for each query"},
      // Values are checked only on the CPU: other devices could not report to the host.
      {"first_key_behind",
       [=](Device) {
         attend_documents({0, 1, 3});
       },
       "attention: first_key[0, 2] is 3, but the query's own position is 2"},
      {"first_key_negative",
       [=](Device) {
         attend_documents({-1, 0, 0});
       },
       "attention: first_key[0, 0] is -1, but the query's own position is 0"},
      {"first_key_decreases",
       [=](Device) {
         attend_documents({0, 1, 0});
       },
       "attention: first_key[0, 2] is 0 after 1: documents follow one another"},
      {"lengths",
       [=](Device d) {
         ops::CausalAttention(Zeros(d, 1, 4, 2, 3), Zeros(d, 1, 3, 2, 3), Zeros(d, 1, 3, 2, 3));
       },
       "attention: k and v must be [B, T, G, D] = [1, 4 or more, G, 3], got f32[1, 3, 2, 3]"},
      {"no_queries",
       [=](Device d) {
         ops::CausalAttention(Zeros(d, 1, 0, 2, 3), Zeros(d, 1, 3, 2, 3), Zeros(d, 1, 3, 2, 3));
       },
       "attention: no queries, but keys"},
      {"groups",
       [=](Device d) {
         ops::CausalAttention(Zeros(d, 1, 4, 3, 3), Zeros(d, 1, 4, 2, 3), Zeros(d, 1, 4, 2, 3));
       },
       "attention: the heads of q must be a positive multiple of those of k and v, got 3 and 2"},
      {"mixed",
       [=](Device d) {
         ops::CausalAttention(Zeros(d, 1, 4, 2, 3), Zeros(d, 1, 4, 2, 3),
                              Zeros(DType::kF64, d, 1, 4, 2, 3));
       },
       "attention: q, k and v must have the same dtype and device"},
  };
}

const bool registered = RegisterOpCase({.name = "attention", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
