#include <algorithm>
#include <cmath>

#include "kernels/nf4/nf4.h"
#include "kernels/op_case/references.h"

namespace lockstep {
namespace {

// The scale of a block, as it is stored double quantised; in f32, as definition and bits demand.
std::vector<float> DoubleQuantized(const std::vector<float>& scales) {
  double sum = 0;
  for (float s : scales) sum += s;
  const auto offset = static_cast<float>(sum / static_cast<double>(scales.size()));
  std::vector<float> out;
  for (size_t begin = 0; begin < scales.size(); begin += kNf4Group) {
    const size_t end = std::min(scales.size(), begin + kNf4Group);
    float largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(scales[i] - offset));
    for (size_t i = begin; i < end; ++i) {
      const float x = largest > 0 ? (scales[i] - offset) / largest : 0;
      float nearest = DynamicMap()[0];
      for (float v : DynamicMap()) {
        if (std::abs(v - x) < std::abs(nearest - x)) nearest = v;
      }
      out.push_back(nearest * largest + offset);
    }
  }
  return out;
}

// What a matrix is after it was quantised and dequantised.
std::vector<double> Quantized(std::span<const double> weight, bool double_quantized) {
  const size_t n = weight.size();
  std::vector<float> scales;
  for (size_t begin = 0; begin < n; begin += kNf4Block) {
    float largest = 0;
    for (size_t i = begin; i < std::min(n, begin + kNf4Block); ++i) {
      largest = std::max(largest, std::abs(static_cast<float>(weight[i])));
    }
    scales.push_back(largest);
  }
  std::vector<double> out(n);
  const std::vector<float> stored = double_quantized && n > 0 ? DoubleQuantized(scales) : scales;
  for (size_t i = 0; i < n; ++i) {
    const float scale = scales[i / kNf4Block];
    const double x = scale > 0 ? weight[i] / scale : 0;
    float nearest = kNf4Code[0];
    for (float v : kNf4Code) {
      if (std::abs(v - x) < std::abs(nearest - x)) nearest = v;
    }
    out[i] = nearest * stored[i / kNf4Block];
  }
  return out;
}

// x [..., K], weight [N, K] and bias [N] or absent; the weight as matrices of these numbers of
// rows.
struct Options {
  std::vector<int64_t> rows;
  bool bias = true;
  bool double_quantized = true;
};

RefTensor Reference(RefSpan in, const Options& o) {
  const int64_t k = in[1].shape[1];
  RefTensor weight(in[1].shape);
  size_t at = 0;
  for (int64_t rows : o.rows) {
    const std::span<const double> all(in[1].data);
    const auto part = Quantized(all.subspan(at, static_cast<size_t>(rows * k)), o.double_quantized);
    std::copy(part.begin(), part.end(), weight.data.begin() + at);
    at += part.size();
  }
  return LinearReference(in[0], weight, in.size() > 2 ? &in[2] : nullptr);
}

std::vector<Nf4Matrix> Parts(const Tensor& weight, const Options& o) {
  std::vector<Nf4Matrix> parts;
  int64_t at = 0;
  for (int64_t rows : o.rows) {
    parts.push_back(ops::Nf4Quantize(weight.Slice(0, at, at + rows), o.double_quantized));
    at += rows;
  }
  return parts;
}

OpSample Sample(const std::string& name, const Shape& x, const Options& o) {
  int64_t n = 0;
  for (int64_t rows : o.rows) n += rows;
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = x}, {.shape = {n, x[-1]}, .differentiable = false}};
  if (o.bias) s.inputs.push_back({.shape = {n}});
  s.run = [o](TensorSpan in) {
    return ops::Nf4Linear(in[0], Parts(in[1], o), in.size() > 2 ? in[2] : Tensor());
  };
  s.reference = [o](RefSpan in) { return Reference(in, o); };
  return s;
}

// The weight is quantised once, beforehand.
OpSample Benchmark(const std::string& name, int64_t m, int64_t k, int64_t n) {
  OpSample s = Sample(name, {m, k}, {.rows = {n}});
  s.run = [quantized = std::make_shared<std::vector<Nf4Matrix>>()](TensorSpan in) {
    if (quantized->empty() || quantized->front().data.device() != in[1].device()) {
      *quantized = {ops::Nf4Quantize(in[1])};
    }
    return ops::Nf4Linear(in[0], *quantized, in[2]);
  };
  s.benchmark = {.flops = 2.0 * m * n * k,
                 .elements = 1.0 * (m * k + n + m * n),
                 .backward_flops = 2.0 * m * n * k};
  return s;
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> s = {
      Sample("empty", {0, 4}, {.rows = {3}}),
      Sample("no_outputs", {2, 4}, {.rows = {0}}),
      Sample("no_inputs", {2, 0}, {.rows = {3}}),
      Sample("one", {1}, {.rows = {1}}),
      Sample("one_with_f32_scales", {1}, {.rows = {1}, .double_quantized = false}),
      Sample("no_bias", {4, 6}, {.rows = {5}, .bias = false}),
      Sample("odd", {3, 7, 17}, {.rows = {13}}),
      Sample("odd_with_f32_scales", {18, 17}, {.rows = {13}, .double_quantized = false}),
      Sample("fused", {19, 24}, {.rows = {8, 3, 5}}),
      Sample("fused_odd", {2, 13}, {.rows = {3, 0, 1, 9}, .bias = false}),
      Sample("whole_blocks", {17, 64}, {.rows = {4, 12}}),
  };
  OpSample transposed = Sample("transposed", {2, 3, 8}, {.rows = {6}});
  transposed.inputs[0].non_contiguous = transposed.inputs[1].non_contiguous = true;
  s.push_back(transposed);
  // Scales of several groups, and chunks for several threads.
  for (OpSample large : {Sample("several_groups", {20, 160}, {.rows = {110, 30}}),
                         Sample("several_chunks", {18, 130}, {.rows = {260}})}) {
    large.finite_differences = false;  // slow, and the other samples have them
    s.push_back(large);
  }
  for (OpSample& b : std::vector<OpSample>{Benchmark("gpt2_qkv", 1024, 768, 2304),
                                           Benchmark("gpt2_fc", 1024, 768, 3072),
                                           Benchmark("gpt2_fc_proj", 1024, 3072, 768),
                                           Benchmark("gpt2_fc_one_row", 1, 768, 3072)}) {
    s.push_back(std::move(b));
  }
  return s;
}

std::vector<ErrorSample> Errors() {
  const auto quantized = [](Device d, int64_t rows, int64_t columns) {
    return std::vector{ops::Nf4Quantize(Zeros(d, rows, columns))};
  };
  return {
      {"scalar", [=](Device d) { ops::Nf4Linear(Zeros(d), quantized(d, 2, 1)); },
       "nf4: x must be a floating tensor [..., K], got f32[]"},
      {"no_matrix", [=](Device d) { ops::Nf4Linear(Zeros(d, 2, 1), {}); },
       "nf4: the weight must have at least one matrix"},
      {"wrong_inputs", [=](Device d) { ops::Nf4Linear(Zeros(d, 4, 3), quantized(d, 3, 5)); },
       "nf4: each matrix of the weight must be [N, 3] (out, in) for x of shape [4, 3], got [3, 5]"},
      {"wrong_bias",
       [=](Device d) { ops::Nf4Linear(Zeros(d, 4, 3), quantized(d, 5, 3), Zeros(d, 3)); },
       "nf4: bias must be [5] for a weight of that many rows, got f32[3]"},
      {"mixed",
       [=](Device d) {
         ops::Nf4Linear(Zeros(d, 4, 3), quantized(d, 5, 3), Zeros(DType::kBF16, d, 5));
       },
       "nf4: x and bias must have the same dtype and device, got f32[4, 3]"},
      {"no_values",
       [=](Device d) {
         ops::Nf4Linear(Zeros(d, 4, 3), std::vector{Nf4Matrix{.shape = {5, 3}}});
       },
       "nf4: the weight has no values yet"},
      {"other_data",
       [=](Device d) {
         ops::Nf4Dequantize({.shape = {5, 3}, .data = Zeros(DType::kU8, d, 9)}, DType::kF32);
       },
       "nf4: a weight of shape [5, 3] has u8[1049] of data, got u8[9]"},
      {"quantise_integers", [=](Device d) { ops::Nf4Quantize(Zeros(DType::kI32, d, 2, 2)); },
       "nf4: what is quantised must be a floating matrix [rows, columns], got i32[2, 2]"},
      {"quantise_infinite",
       [](Device d) {
         ops::Nf4Quantize(Tensor::Full({2, 2}, INFINITY, DType::kF32, d));
       },
       "nf4: a matrix with infinite or undefined (NaN) weights, of shape [2, 2], cannot be"},
      {"to_integers", [=](Device d) { ops::Nf4Dequantize(quantized(d, 2, 2)[0], DType::kI32); },
       "nf4: a weight is dequantised to a floating dtype, not to i32"},
  };
}

const bool registered = RegisterOpCase({.name = "nf4", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
