#include <cmath>

#include "kernels/cached_attention/cached_attention.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// The places of a batch: distinct rows of a cache of `sequences`, in descending order, and
// positions that differ where there is room.
struct Places {
  std::vector<int32_t> rows, positions;

  Places(int64_t batch, int64_t tokens, int64_t sequences, int64_t capacity) {
    for (int64_t b = 0; b < batch; ++b) {
      rows.push_back(static_cast<int32_t>(sequences - 1 - b));
      positions.push_back(static_cast<int32_t>((capacity - tokens) * (batch - b) / batch));
    }
  }
};

Tensor Index(const std::vector<int32_t>& values, Device device) {
  const Shape shape{static_cast<int64_t>(values.size())};
  if (device.is_meta()) return Tensor::Empty(shape, DType::kI32, device);
  return Tensor::FromVector(values, shape, device);
}

RefTensor StoreReference(const RefTensor& x, const Places& places, RefTensor cache) {
  const int64_t t = x.shape[1], g = x.shape[2], d = x.shape[3], capacity = cache.shape[2];
  for (int64_t at = 0; at < x.shape.numel(); ++at) {
    const int64_t l = at % d, h = at / d % g, i = at / d / g % t, b = at / d / g / t;
    const int64_t place = (places.rows[b] * g + h) * capacity + places.positions[b] + i;
    cache.data[place * d + l] = x.data[at];
  }
  return cache;
}

// By the definition: all scores of a query, then their softmax.
RefTensor AttendReference(const RefTensor& q, const RefTensor& k, const RefTensor& v,
                          const Places& places, const ops::CausalAttentionOptions& options) {
  const double scale =
      options.scale > 0 ? options.scale : 1 / std::sqrt(static_cast<double>(q.shape[3]));
  const int64_t t = q.shape[1], heads = q.shape[2], d = q.shape[3];
  const int64_t groups = k.shape[1], capacity = k.shape[2];
  RefTensor y(q.shape);
  for (int64_t row = 0; row < q.shape[0] * t * heads; ++row) {
    const int64_t h = row % heads, i = row / heads % t, b = row / heads / t;
    const int64_t first = (places.rows[b] * groups + h / (heads / groups)) * capacity;
    std::vector<double> p(static_cast<size_t>(places.positions[b] + i + 1));
    double sum = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      if (options.window > 0 && j + static_cast<size_t>(options.window) < p.size()) continue;
      for (int64_t l = 0; l < d; ++l) p[j] += q.data[row * d + l] * k.data[(first + j) * d + l];
      p[j] *= scale;
      if (options.softcap > 0) p[j] = options.softcap * std::tanh(p[j] / options.softcap);
      sum += p[j] = std::exp(p[j]);
    }
    for (size_t j = 0; j < p.size(); ++j) {
      for (int64_t l = 0; l < d; ++l) {
        y.data[row * d + l] += p[j] / sum * v.data[(first + j) * d + l];
      }
    }
  }
  return y;
}

struct Sizes {
  int64_t batch, tokens, heads, groups, d, sequences, capacity;
};

std::vector<InputSpec> Inputs(const Sizes& s, bool queries) {
  const Shape cache{s.sequences, s.groups, s.capacity, s.d};
  std::vector<InputSpec> specs = {
      {.shape = {s.batch, s.tokens, queries ? s.heads : s.groups, s.d}, .low = -2, .high = 2}};
  for (int i = 0; i < (queries ? 2 : 1); ++i) {
    specs.push_back({.shape = cache, .low = -2, .high = 2});
  }
  for (InputSpec& spec : specs) spec.differentiable = false;
  return specs;
}

OpSample Attend(const std::string& name, const Sizes& s,
                const ops::CausalAttentionOptions& options = {}) {
  const Places places(s.batch, s.tokens, s.sequences, s.capacity);
  OpSample sample;
  sample.name = name;
  sample.inputs = Inputs(s, /*queries=*/true);
  sample.run = [=](TensorSpan in) {
    const Device device = in[0].device();
    return ops::CachedAttention(in[0], in[1], in[2], Index(places.rows, device),
                                Index(places.positions, device), options);
  };
  sample.reference = [=](RefSpan in) {
    return AttendReference(in[0], in[1], in[2], places, options);
  };
  return sample;
}

OpSample Store(const std::string& name, const Sizes& s) {
  const Places places(s.batch, s.tokens, s.sequences, s.capacity);
  OpSample sample;
  sample.name = name;
  sample.inputs = Inputs(s, /*queries=*/false);
  sample.run = [=](TensorSpan in) {
    const Device device = in[0].device();
    const Tensor cache = in[1].Clone();  // samples keep their inputs
    ops::StoreInCache(in[0], Index(places.rows, device), Index(places.positions, device), cache);
    return cache;
  };
  sample.reference = [=](RefSpan in) { return StoreReference(in[0], places, in[1]); };
  return sample;
}

OpSample Benchmark(const std::string& name, const Sizes& s) {
  OpSample sample = Attend(name, s);
  const Places places(s.batch, s.tokens, s.sequences, s.capacity);
  double keys = 0;
  for (int32_t position : places.positions) keys += position + 1;
  sample.benchmark = {.flops = 4.0 * keys * s.heads * s.d,
                      .elements = 2.0 * (keys * s.groups + s.batch * s.heads) * s.d};
  return sample;
}

std::vector<OpSample> Samples() {
  // batch, tokens, heads, groups, d, sequences, capacity
  std::vector<OpSample> samples = {
      Attend("empty", {0, 1, 2, 2, 4, 3, 5}),
      Attend("no_tokens", {2, 0, 2, 2, 4, 3, 5}),
      Attend("one", {1, 1, 1, 1, 1, 1, 1}),
      Attend("odd", {3, 1, 3, 3, 5, 4, 13}),
      Attend("several_tiles_of_keys", {2, 3, 4, 2, 8, 3, 300}),
      Attend("wide_heads", {2, 2, 2, 1, 150, 2, 9}),
      Attend("grouped", {2, 1, 6, 2, 17, 2, 9}),
      Attend("several_tokens", {2, 4, 4, 2, 8, 5, 11}),
      Attend("several_chunks", {3, 2, 4, 4, 48, 3, 530}),
      Attend("scale", {2, 1, 2, 2, 8, 2, 9}, {.scale = 1}),
      Attend("softcap", {2, 1, 2, 2, 8, 2, 140}, {.scale = 1, .softcap = 1.5}),
      Attend("window", {3, 4, 4, 2, 8, 3, 30}, {.window = 5}),
      Attend("window_of_one", {2, 2, 2, 2, 8, 2, 30}, {.window = 1}),
      Attend("window_of_several_tiles", {2, 3, 4, 2, 8, 3, 530}, {.window = 200}),
      Attend("window_beyond_the_text", {2, 1, 2, 1, 5, 2, 20}, {.window = 20}),
      Attend("everything", {2, 3, 4, 2, 8, 3, 300}, {.scale = 0.8, .softcap = 2, .window = 150}),
      Store("store_nothing", {0, 1, 2, 2, 4, 3, 5}),
      Store("store_one", {1, 1, 1, 1, 1, 1, 1}),
      Store("store_odd", {3, 1, 3, 3, 5, 4, 13}),
      Store("store_several_chunks", {2, 300, 4, 4, 33, 5, 311}),
  };
  OpSample strided = Attend("transposed", {3, 2, 2, 2, 4, 3, 7});
  strided.inputs[0].non_contiguous = true;
  samples.push_back(strided);
  OpSample strided_store = Store("store_transposed", {3, 2, 2, 2, 4, 3, 7});
  strided_store.inputs[0].non_contiguous = true;
  samples.push_back(strided_store);
  samples.push_back(Benchmark("gpt2_1024", {1, 1, 12, 12, 64, 1, 1024}));
  samples.push_back(Benchmark("gpt2_8_of_1024", {8, 1, 12, 12, 64, 8, 1024}));
  return samples;
}

std::vector<ErrorSample> Errors() {
  const auto attend = [=](const Tensor& q, const Tensor& cache, std::vector<int32_t> rows,
                          std::vector<int32_t> positions) {
    ops::CachedAttention(q, cache, cache, Index(rows, q.device()), Index(positions, q.device()));
  };
  // Rows and positions are checked only on the CPU: other devices could not report to the host.
  return {
      {"matrix", [=](Device d) { attend(Zeros(d, 2, 4), Zeros(d, 1, 1, 2, 4), {0}, {0}); },
       "cached_attention: q must be a floating tensor [B, T, heads, D], got f32[2, 4]"},
      {"sizes", [=](Device d) { attend(Zeros(d, 1, 1, 2, 4), Zeros(d, 1, 2, 3, 5), {0}, {0}); },
       "cached_attention: the cache must be a contiguous f32 [S, G, P, 4] on cpu, got f32[1, 2, 3, "
       "5]"},
      {"mixed",
       [=](Device d) { attend(Zeros(d, 1, 1, 2, 4), Zeros(DType::kF64, d, 1, 2, 3, 4), {0}, {0}); },
       "cached_attention: the cache must be a contiguous f32 [S, G, P, 4] on cpu, got f64"},
      {"groups", [=](Device d) { attend(Zeros(d, 1, 1, 3, 4), Zeros(d, 1, 2, 3, 4), {0}, {0}); },
       "cached_attention: the heads of q must be a positive multiple of those of the cache, got 3 "
       "and 2"},
      {"indices",
       [=](Device d) {
         attend(Zeros(d, 2, 1, 2, 4), Zeros(d, 2, 2, 3, 4), {0}, {0, 0});
       },
       "cached_attention: rows and positions must be i32[2] on cpu, got i32[1]"},
      {"row", [=](Device) { attend(Zeros(kCpu, 1, 1, 2, 4), Zeros(kCpu, 2, 2, 3, 4), {2}, {0}); },
       "cached_attention: the row 2 of sequence 0 is not in [0, 2)"},
      {"position",
       [=](Device) { attend(Zeros(kCpu, 1, 2, 2, 4), Zeros(kCpu, 1, 2, 3, 4), {0}, {2}); },
       "cached_attention: 2 tokens from position 2 do not fit a cache of 3 positions"},
      {"gradient",
       [=](Device d) {
         Tensor q = Zeros(d, 1, 1, 2, 4);
         attend(q.SetRequiresGrad(), Zeros(d, 1, 2, 3, 4), {0}, {0});
       },
       "cached_attention has no gradient: generate within NoGrad"},
      {"dropout",
       [=](Device d) {
         const Tensor cache = Zeros(d, 1, 2, 3, 4);
         ops::CachedAttention(Zeros(d, 1, 1, 2, 4), cache, cache, Index({0}, d), Index({0}, d),
                              {.dropout = 0.1});
       },
       "cached_attention has neither dropout nor first_key"},
      {"window",
       [=](Device d) {
         const Tensor cache = Zeros(d, 1, 2, 3, 4);
         ops::CachedAttention(Zeros(d, 1, 1, 2, 4), cache, cache, Index({0}, d), Index({0}, d),
                              {.window = -2});
       },
       "cached_attention: window must be a positive number, or 0 for the default, got -2"},
      {"store_twice",
       [=](Device) {
         ops::StoreInCache(Zeros(kCpu, 2, 1, 2, 4), Index({1, 1}, kCpu), Index({0, 1}, kCpu),
                           Zeros(kCpu, 2, 2, 3, 4));
       },
       "store_in_cache: the row 1 of the cache is named twice"},
      {"store_heads",
       [=](Device d) {
         ops::StoreInCache(Zeros(d, 1, 1, 2, 4), Index({0}, d), Index({0}, d),
                           Zeros(d, 2, 1, 3, 4));
       },
       "store_in_cache: the cache has 1 heads and x 2"},
  };
}

const bool registered = RegisterOpCase(
    {.name = "cached_attention", .samples = Samples, .errors = Errors, .differentiable = false});

}  // namespace
}  // namespace lockstep
