#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/op_case.h"

namespace lockstep {
namespace {

constexpr AdamWHyper kHyper = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
constexpr double kLr = 0.01, kDecay = 0.1, kLossScale = 4;
constexpr int64_t kStep = 3;

void Begin(StepState& state) { state.Begin(kStep, kLr, kHyper.beta1, kHyper.beta2, kLossScale); }

// Inputs: value, grad, exp_avg, exp_avg_sq and, optionally, master.
std::vector<Tensor> Run(std::span<const Tensor> in) {
  StepState state(in[0].device(), 1);
  Begin(state);
  std::vector<Tensor> t;
  for (const Tensor& x : in) t.push_back(x.Detach().Contiguous().Clone());
  const DType statistics = in[0].dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  for (size_t i = 2; i < t.size(); ++i) t[i] = t[i].To(statistics);
  // Only 16-bit values have a master: the others take its part themselves.
  const bool master = t.size() == 5 && SizeOf(t[0].dtype()) == 2;
  if (t.size() == 5 && !master) t[0] = t[4].To(t[0].dtype());
  const AdamWTensors tensors = {.value = t[0],
                                .grad = t[1],
                                .exp_avg = t[2],
                                .exp_avg_sq = t[3],
                                .master = master ? t[4] : Tensor(),
                                .weight_decay = kDecay};
  ops::AdamWUpdate(std::span(&tensors, 1), kHyper, state);
  t.resize(4);
  t.erase(t.begin() + 1);
  return t;
}

std::vector<RefTensor> Reference(std::span<const RefTensor> in) {
  StepState state(kCpu, 1);
  Begin(state);
  const StepValues s = state.Read();  // lr and corrections as f32 has them
  RefTensor p = in.size() == 5 ? in[4] : in[0], m = in[2], v = in[3];
  for (size_t i = 0; i < p.data.size(); ++i) {
    const double g = in[1].data[i] / kLossScale;
    m.data[i] = kHyper.beta1 * m.data[i] + (1 - kHyper.beta1) * g;
    v.data[i] = kHyper.beta2 * v.data[i] + (1 - kHyper.beta2) * g * g;
    p.data[i] *= 1 - s.lr * kDecay;
    p.data[i] -= s.lr * (m.data[i] / s.beta1_correction) /
                 (std::sqrt(v.data[i] / s.beta2_correction) + kHyper.eps);
  }
  return {p, m, v};
}

OpSample Sample(const std::string& name, const InputSpec& like, bool master = false) {
  InputSpec positive = like;
  positive.low = 0;
  OpSample s{
      .name = name, .inputs = {like, like, like, positive}, .run = Run, .reference = Reference};
  if (master) s.inputs.push_back(like);
  return s;
}

OpCase Make() {
  OpCase c;
  c.name = "adamw";
  c.dtypes = {DType::kF64, DType::kF32, DType::kBF16};
  c.differentiable = false;
  c.samples = [] {
    OpSample f32_grad = Sample("f32 gradient", {.shape = {37}});
    f32_grad.inputs[1].dtype = DType::kF32;
    OpSample large = Sample("16 million", {.shape = {4096, 4096}});
    large.flops = 4096.0 * 4096 * 14;
    large.elements_moved = 4096.0 * 4096 * 7;
    large.benchmark_only = true;
    return std::vector<OpSample>{Sample("empty", {.shape = {0, 3}}),
                                 Sample("one", {.shape = {1}}),
                                 Sample("odd", {.shape = {7, 13}}),
                                 Sample("several chunks", {.shape = {3, 11003}}),
                                 Sample("strided", {.shape = {5, 9}, .non_contiguous = true}),
                                 Sample("master", {.shape = {7, 13}}, true),
                                 f32_grad,
                                 large};
  };
  c.errors = [] {
    const auto update = [](AdamWTensors t, const AdamWHyper& hyper, Device d) {
      ops::AdamWUpdate(std::span(&t, 1), hyper, StepState(d, 1));
    };
    const auto tensors = [](Device d) {
      const auto zeros = [d] { return Tensor::Zeros({2, 3}, DType::kF32, d); };
      return AdamWTensors{.value = zeros(),
                          .grad = zeros(),
                          .exp_avg = zeros(),
                          .exp_avg_sq = zeros(),
                          .master = {}};
    };
    return std::vector<ErrorSample>{
        {"beta of 1", [=](Device d) { update(tensors(d), {.beta2 = 1}, d); },
         "adamw: betas must be in [0, 1), got 1"},
        {"negative eps", [=](Device d) { update(tensors(d), {.eps = -1}, d); },
         "adamw: eps must not be negative, got -1"},
        {"no gradient",
         [=](Device d) {
           AdamWTensors t = tensors(d);
           t.grad = Tensor();
           update(t, {}, d);
         },
         "adamw: grad of tensor 0 must be floating, got undefined tensor"},
        {"shape of the gradient",
         [=](Device d) {
           AdamWTensors t = tensors(d);
           t.grad = Tensor::Zeros({3, 2}, DType::kF32, d);
           update(t, {}, d);
         },
         "adamw: grad of tensor 0 must be a contiguous f32[2, 3]"},
        {"dtype of the state",
         [=](Device d) {
           AdamWTensors t = tensors(d);
           t.exp_avg_sq = t.exp_avg_sq.To(DType::kBF16);
           update(t, {}, d);
         },
         "adamw: exp_avg_sq of tensor 0 must be a contiguous f32[2, 3]"},
        {"master of an f32 value",
         [=](Device d) {
           AdamWTensors t = tensors(d);
           t.master = t.value.Clone();
           update(t, {}, d);
         },
         "adamw: tensor 0 has a master, but its value is f32[2, 3]"}};
  };
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
