#include "kernels/bench/gpt.h"

#include <algorithm>

#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu/gelu.h"
#include "kernels/global_norm/global_norm.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"
#include "kernels/residual_norm/residual_norm.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotary_embedding/rotary_embedding.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "kernels/swiglu_geglu/swiglu_geglu.h"
#include "kernels/token_position_embedding/token_position_embedding.h"

namespace lockstep {
namespace {

// At most this many parameters stand for all of a model: more do not improve bandwidth.
constexpr double kMostUpdated = 1 << 24;

StepCase Case(const std::string& op, const std::string& sample, double calls,
              std::vector<InputSpec> inputs, const OpWork& work,
              std::function<Results<Tensor>(TensorSpan)> run) {
  StepCase c;
  c.op.name = op;
  c.op.dtypes = {DType::kBF16, DType::kF32};
  c.calls = calls;
  OpSample s;
  s.name = sample;
  s.inputs = std::move(inputs);
  s.run = std::move(run);
  s.benchmark = work;
  c.op.samples = [s] { return std::vector{s}; };
  return c;
}

StepCase Product(const std::string& name, const GptShape& shape, int64_t k, int64_t n, bool bias) {
  const auto m = static_cast<double>(shape.rows());
  std::vector<InputSpec> inputs = {{.shape = {shape.rows(), k}}, {.shape = {n, k}}};
  if (bias) inputs.push_back({.shape = {n}});
  const double size = static_cast<double>(n * k) + m * static_cast<double>(n + k);
  return Case("linear", name, static_cast<double>(shape.layers), inputs,
              {2 * m * static_cast<double>(n) * static_cast<double>(k), size}, [](TensorSpan in) {
                return ops::Linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor());
              });
}

std::vector<Tensor> UpdateWeights(TensorSpan in) {
  StepState state(in[0].device(), 1);
  state.Begin(1, 1e-4, {{0.9, 0.95}});
  const UpdateTensors tensors = {.value = in[0],
                                 .grad = in[1],
                                 .states = {in[2], in[3]},
                                 .master = in[0].dtype() == DType::kF32 ? Tensor() : in[4],
                                 .weight_decay = 0.1};
  ops::AdamWUpdate(std::span(&tensors, 1), {.beta2 = 0.95}, state);
  return {};
}

}  // namespace

std::vector<StepCase> GptStep(const GptShape& g) {
  const int64_t c = g.width, t = g.sequence;
  const auto layers = static_cast<double>(g.layers), rows = static_cast<double>(g.rows());
  const double width = static_cast<double>(c), vocabulary = static_cast<double>(g.vocabulary);
  const double x_size = rows * width;
  const double parameters =
      12 * layers * width * width + (vocabulary + static_cast<double>(t)) * width;
  const InputSpec ids{
      .shape = {g.batch, t}, .low = 0, .high = vocabulary, .index = true, .differentiable = false};
  const InputSpec x{.shape = {g.batch, t, c}}, vector{.shape = {c}};
  const double updated = std::min(parameters, kMostUpdated);
  const InputSpec state{.shape = {static_cast<int64_t>(updated)},
                        .low = 0,
                        .differentiable = false,
                        .dtype = DType::kF32};
  InputSpec value = state;
  value.dtype.reset();

  std::vector<StepCase> step;
  step.push_back(
      Case("token_position_embedding", "step", 1,
           {ids, {.shape = {g.vocabulary, c}}, {.shape = {t, c}}}, {x_size, 2 * x_size},
           [](TensorSpan in) { return ops::TokenPositionEmbedding(in[0], in[1], in[2]); }));
  step.push_back(Case("residual_norm", "step", 2 * layers + 1, {x, x, vector, vector, vector},
                      {9 * x_size, 4 * x_size}, [](TensorSpan in) {
                        ops::Branch branch(in[1]);
                        branch.bias = in[2];
                        const auto [sum, y] =
                            ops::ResidualNorm(NormKind::kLayerNorm, in[0], branch, in[3], in[4]);
                        return std::vector{sum, y};
                      }));
  step.push_back(Product("qkv", g, c, 3 * c, true));
  step.push_back(
      Case("attention", "step", layers, {{.shape = {g.batch, t, 3 * c}}},
           {2 * rows * static_cast<double>(t + 1) * width, 4 * x_size},
           [heads = g.heads](TensorSpan in) { return ops::CausalAttention(in[0], heads); }));
  step.push_back(Product("projection", g, c, c, false));
  step.push_back(Case(
      "mlp", "step", layers, {x, {.shape = {4 * c, c}}, {.shape = {4 * c}}, {.shape = {c, 4 * c}}},
      {16 * rows * width * width, 10 * x_size + 8 * width * width}, [](TensorSpan in) {
        return ops::Linear(ops::Linear(in[0], in[1], in[2], Activation::kGelu), in[3]);
      }));
  step.push_back(
      Case("linear_cross_entropy", "step", 1, {x, {.shape = {g.vocabulary, c}}, ids},
           // Its forward computes the gradients, its backward scales them.
           {6 * rows * width * vocabulary, 2 * (x_size + vocabulary * width), width * vocabulary},
           [chunk = ops::LossChunk(g.vocabulary, c, g.rows())](TensorSpan in) {
             return ops::LinearCrossEntropy(in[0], in[1], in[2], Reduction::kMean, chunk);
           }));
  // In bytes of bf16: 4 of the gradient, 8 each of two moments and the master, 2 of the weight.
  step.push_back(Case("adamw", "step", parameters / updated, {value, state, state, state, state},
                      {14 * updated, 15 * updated}, UpdateWeights));
  step.push_back(Case("global_norm", "step", parameters / updated, {state},
                      {2 * updated, 2 * updated}, [](TensorSpan in) {
                        StepState of(in[0].device(), 1);
                        of.Begin(1, 1e-4);
                        ops::GradNorm(in, 1, of);
                        return std::vector<Tensor>{};
                      }));
  return step;
}

std::vector<StepCase> OtherGptOps(const GptShape& g) {
  const int64_t c = g.width, t = g.sequence, head = c / g.heads;
  const InputSpec ids{.shape = {g.batch, t},
                      .low = 0,
                      .high = static_cast<double>(g.vocabulary),
                      .index = true,
                      .differentiable = false};
  const InputSpec x{.shape = {g.batch, t, c}}, wide{.shape = {g.batch, t, 4 * c}},
      vector{.shape = {c}}, logits{.shape = {g.batch, t, g.vocabulary}};
  const auto simple = [](const std::string& op, std::vector<InputSpec> inputs,
                         std::function<Results<Tensor>(TensorSpan)> run) {
    return Case(op, "step", 1, std::move(inputs), {}, std::move(run));
  };
  return {
      simple("embedding", {ids, {.shape = {g.vocabulary, c}}},
             [](TensorSpan in) { return ops::Embedding(in[0], in[1]); }),
      simple("gelu", {wide}, [](TensorSpan in) { return ops::Gelu(in[0]); }),
      simple("layer_norm", {x, vector, vector},
             [](TensorSpan in) { return ops::LayerNorm(in[0], in[1], in[2]); }),
      simple("rms_norm", {x, vector}, [](TensorSpan in) { return ops::RmsNorm(in[0], in[1]); }),
      simple("rotary_embedding", {{.shape = {g.batch, t, 3 * c}}},
             [t, head, turned = 2 * g.heads](TensorSpan in) {
               const Tensor table =
                   ops::RotaryTable(t, head, {}, AccumulationDType(in[0].dtype()), in[0].device());
               return ops::RotaryEmbedding(in[0], table, turned);
             }),
      simple("softmax_cross_entropy", {logits, ids},
             [](TensorSpan in) { return ops::SoftmaxCrossEntropy(in[0], in[1]); }),
      simple("swiglu_geglu", {wide}, [](TensorSpan in) { return ops::SwiGlu(in[0]); }),
  };
}

}  // namespace lockstep
