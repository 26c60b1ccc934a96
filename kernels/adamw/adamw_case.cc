#include <cmath>

#include "kernels/adamw/adamw.h"
#include "kernels/op_case/update_case.h"

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
  const UpdateInputs t = UpdateInputsOf(in, 2);
  const AdamWTensors tensors = {.value = t.value,
                                .grad = t.grad,
                                .exp_avg = t.states[0],
                                .exp_avg_sq = t.states[1],
                                .master = t.master,
                                .weight_decay = kDecay};
  ops::AdamWUpdate(std::span(&tensors, 1), kHyper, state);
  return {t.value, t.states[0], t.states[1]};
}

std::vector<RefTensor> Reference(std::span<const RefTensor> in) {
  StepState state(kCpu, 1);
  Begin(state);
  const StepValues s = state.Read();  // lr and corrections as f32 has them
  RefTensor p = UpdatedValue(in, 2), m = in[2], v = in[3];
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
  OpSample s = UpdateSample(name, like, 2, master);
  s.inputs[3].low = 0;  // a mean of squares
  s.run = Run;
  s.reference = Reference;
  return s;
}

std::vector<OpSample> Samples() {
  OpSample f32_grad = Sample("f32 gradient", {.shape = {37}});
  f32_grad.inputs[1].dtype = DType::kF32;
  OpSample large = Sample("16 million", {.shape = {4096, 4096}});
  large.flops = 4096.0 * 4096 * 14;
  large.elements_moved = 4096.0 * 4096 * 7;
  large.benchmark_only = true;
  return {Sample("empty", {.shape = {0, 3}}),
          Sample("one", {.shape = {1}}),
          Sample("odd", {.shape = {7, 13}}),
          Sample("several chunks", {.shape = {3, 11003}}),
          Sample("strided", {.shape = {5, 9}, .non_contiguous = true}),
          Sample("master", {.shape = {7, 13}}, true),
          f32_grad,
          large};
}

std::vector<ErrorSample> Errors() {
  using T = AdamWTensors;
  const UpdateErrors<T, AdamWHyper> error(ops::AdamWUpdate,
                                          {&T::value, &T::grad, &T::exp_avg, &T::exp_avg_sq});
  return {error(
              "beta of 1", [](auto&, auto& hyper) { hyper.beta2 = 1; },
              "adamw: betas must be in [0, 1), got 1"),
          error(
              "negative eps", [](auto&, auto& hyper) { hyper.eps = -1; },
              "adamw: eps must not be negative, got -1"),
          error(
              "no gradient", [](auto& t, auto&) { t.grad = Tensor(); },
              "adamw: grad of tensor 0 must be floating, got undefined tensor"),
          error(
              "shape of the gradient",
              [](auto& t, auto&) {
                t.grad = t.grad.View({3, 2});
              },
              "adamw: grad of tensor 0 must be a contiguous f32[2, 3]"),
          error(
              "dtype of the state",
              [](auto& t, auto&) { t.exp_avg_sq = t.exp_avg_sq.To(DType::kBF16); },
              "adamw: exp_avg_sq of tensor 0 must be a contiguous f32[2, 3]"),
          error(
              "master of an f32 value", [](auto& t, auto&) { t.master = t.value.Clone(); },
              "adamw: tensor 0 has a master, but its value is f32[2, 3]")};
}

OpCase Make() {
  OpCase c;
  c.name = "adamw";
  c.dtypes = {DType::kF64, DType::kF32, DType::kBF16};
  c.differentiable = false;
  c.samples = Samples;
  c.errors = Errors;
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
