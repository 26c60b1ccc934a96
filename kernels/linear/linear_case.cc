#include "kernels/linear/linear.h"
#include "kernels/op_case/references.h"

namespace lockstep {
namespace {

// x [..., K], weight [N, K], bias [N] or absent.
RefTensor Reference(RefSpan in, Activation activation) {
  RefTensor y = LinearReference(in[0], in[1], in.size() > 2 ? &in[2] : nullptr);
  if (activation == Activation::kNone) return y;
  for (double& z : y.data) z = GeluTanh(z);
  return y;
}

OpSample Sample(const std::string& name, const Shape& x, int64_t n, bool bias,
                Activation activation = Activation::kNone) {
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = x}, {.shape = {n, x[-1]}}};
  if (bias) s.inputs.push_back({.shape = {n}});
  s.run = [activation](TensorSpan in) {
    return ops::Linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), activation);
  };
  s.reference = [activation](RefSpan in) { return Reference(in, activation); };
  return s;
}

// x [..., K], the weights [H, K] and [N, H] and the bias [H] of two layers with GELU between them,
// whose derivative is taken where the second gives x its gradient.
OpSample TwoLayers(const std::string& name, const Shape& x, int64_t hidden, int64_t n) {
  OpSample s;
  s.name = name;
  s.inputs = {
      {.shape = x}, {.shape = {hidden, x[-1]}}, {.shape = {hidden}}, {.shape = {n, hidden}}};
  s.run = [](TensorSpan in) {
    return ops::Linear(ops::Linear(in[0], in[1], in[2], Activation::kGelu), in[3]);
  };
  s.reference = [](RefSpan in) {
    return LinearReference(Reference(in.first(3), Activation::kGelu), in[3], nullptr);
  };
  return s;
}

OpSample Benchmark(const std::string& name, int64_t m, int64_t k, int64_t n,
                   Activation activation = Activation::kNone) {
  OpSample s = Sample(name, {m, k}, n, true, activation);
  s.benchmark = {.flops = 2.0 * m * n * k, .elements = 1.0 * (m * k + n * k + n + m * n)};
  return s;
}

std::vector<OpSample> Samples() {
  std::vector<OpSample> s = {
      Sample("empty", {0, 4}, 3, true),
      Sample("no_outputs", {2, 4}, 0, true),
      Sample("no_inputs", {2, 0}, 3, true),
      Sample("one", {1}, 1, true),
      Sample("vector", {7}, 5, true, Activation::kGelu),
      Sample("no_bias", {4, 6}, 5, false),
      Sample("odd", {3, 5, 17}, 13, true),
      Sample("gelu", {2, 9, 11}, 19, true, Activation::kGelu),
      Sample("gelu_no_bias", {9, 11}, 6, false, Activation::kGelu),
      Sample("few_rows", {1, 16}, 67, true),
      Sample("few_rows_gelu", {5, 37}, 130, true, Activation::kGelu),
      Sample("most_few_rows", {kFewRows, 33}, 9, false),
      Sample("rows_beyond_few", {kFewRows + 1, 33}, 9, true),
  };
  OpSample transposed = Sample("transposed", {2, 3, 8}, 6, true);
  transposed.inputs[0].non_contiguous = transposed.inputs[1].non_contiguous = true;
  s.push_back(transposed);
  for (OpSample& b : std::vector<OpSample>{
           Benchmark("char_qkv", 768, 128, 384), Benchmark("char_proj", 768, 128, 128),
           Benchmark("char_fc_gelu", 768, 128, 512, Activation::kGelu),
           Benchmark("char_head", 768, 128, 65), Benchmark("gpt2_qkv", 1024, 768, 2304),
           Benchmark("gpt2_proj", 1024, 768, 768),
           Benchmark("gpt2_fc_gelu", 1024, 768, 3072, Activation::kGelu),
           Benchmark("gpt2_fc_proj", 1024, 3072, 768), Benchmark("gpt2_fc_one_row", 1, 768, 3072),
           Benchmark("gpt2_fc_8_rows", 8, 768, 3072), Benchmark("gpt2_head_one_row", 1, 768, 50304),
           Benchmark("gpt2_head", 1024, 768, 50304)}) {
    s.push_back(std::move(b));
  }
  s.push_back(Sample("gelu_of_eights", {2, 10, 24}, 32, true, Activation::kGelu));
  s.push_back(Sample("gelu_of_eights_no_bias", {19, 8}, 16, false, Activation::kGelu));
  s.push_back(Sample("many_rows", {1300, 3}, 5, true));
  s.push_back(TwoLayers("two_layers", {3, 7, 16}, 24, 8));
  s.push_back(TwoLayers("two_layers_odd", {19, 5}, 7, 3));
  OpSample tiles = Sample("several_tiles", {150, 70}, 130, true);
  tiles.finite_differences = false;  // slow, and the other samples have them
  s.push_back(tiles);
  return s;
}

std::vector<ErrorSample> Errors() {
  return {
      {"scalar", [](Device d) { ops::Linear(Zeros(d), Zeros(d, 2, 1)); },
       "linear: x must be a floating tensor [..., K], got f32[]"},
      {"integers", [](Device d) { ops::Linear(Zeros(DType::kI32, d, 2), Zeros(d, 2, 2)); },
       "linear: x must be a floating tensor [..., K], got i32[2]"},
      {"wrong_inputs", [](Device d) { ops::Linear(Zeros(d, 4, 3), Zeros(d, 3, 5)); },
       "linear: weight must be [N, 3] (out, in) for x of shape [4, 3], got f32[3, 5]"},
      {"mixed", [](Device d) { ops::Linear(Zeros(d, 4, 3), Zeros(DType::kF64, d, 5, 3)); },
       "linear: x and weight must have the same dtype and device, got f32[4, 3]"},
      {"wrong_bias", [](Device d) { ops::Linear(Zeros(d, 4, 3), Zeros(d, 5, 3), Zeros(d, 3)); },
       "linear: bias must be [5] for a weight of shape [5, 3], got f32[3]"},
  };
}

const bool registered = RegisterOpCase({.name = "linear", .samples = Samples, .errors = Errors});

}  // namespace
}  // namespace lockstep
