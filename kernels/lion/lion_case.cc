#include "kernels/lion/lion.h"
#include "kernels/op_case/update_case.h"

namespace lockstep {
namespace {

constexpr LionHyper kHyper = {.beta1 = 0.9, .beta2 = 0.95};
constexpr double kLr = 0.1, kDecay = 0.3, kLossScale = 4;

void Begin(StepState& state) { state.Begin(/*step=*/3, kLr, 0, 0, kLossScale); }

// Inputs: value, grad, exp_avg and, optionally, master.
std::vector<Tensor> Run(std::span<const Tensor> in) {
  StepState state(in[0].device(), 1);
  Begin(state);
  const UpdateInputs t = UpdateInputsOf(in, 1);
  const LionTensors tensors = {.value = t.value,
                               .grad = t.grad,
                               .exp_avg = t.states[0],
                               .master = t.master,
                               .weight_decay = kDecay};
  ops::LionUpdate(std::span(&tensors, 1), kHyper, state);
  return {t.value, t.states[0]};
}

std::vector<RefTensor> Reference(std::span<const RefTensor> in) {
  StepState state(kCpu, 1);
  Begin(state);
  const double lr = state.Read().lr;  // as f32 has it
  RefTensor p = UpdatedValue(in, 1), m = in[2];
  for (size_t i = 0; i < p.data.size(); ++i) {
    const double g = in[1].data[i] / kLossScale;
    const double direction = kHyper.beta1 * m.data[i] + (1 - kHyper.beta1) * g;
    p.data[i] *= 1 - lr * kDecay;
    if (direction != 0) p.data[i] -= direction > 0 ? lr : -lr;
    m.data[i] = kHyper.beta2 * m.data[i] + (1 - kHyper.beta2) * g;
  }
  return {p, m};
}

OpSample Sample(const std::string& name, const InputSpec& like, bool master = false) {
  OpSample s = UpdateSample(name, like, 1, master);
  s.run = Run;
  s.reference = Reference;
  return s;
}

std::vector<OpSample> Samples() {
  OpSample f32_grad = Sample("f32 gradient", {.shape = {37}});
  f32_grad.inputs[1].dtype = DType::kF32;
  // Where gradient and momentum are 0 the parameter only decays.
  OpSample zeros = Sample("zeros", {.shape = {7}});
  for (size_t i : {1, 2}) zeros.inputs[i].low = zeros.inputs[i].high = 0;
  OpSample large = Sample("16 million", {.shape = {4096, 4096}});
  large.flops = 4096.0 * 4096 * 10;
  large.elements_moved = 4096.0 * 4096 * 5;
  large.benchmark_only = true;
  return {Sample("empty", {.shape = {0, 3}}),
          Sample("one", {.shape = {1}}),
          Sample("odd", {.shape = {7, 13}}),
          Sample("several chunks", {.shape = {3, 11003}}),
          Sample("strided", {.shape = {5, 9}, .non_contiguous = true}),
          Sample("master", {.shape = {7, 13}}, true),
          zeros,
          f32_grad,
          large};
}

std::vector<ErrorSample> Errors() {
  using T = LionTensors;
  const UpdateErrors<T, LionHyper> error(ops::LionUpdate, {&T::value, &T::grad, &T::exp_avg});
  return {error(
              "beta of 1", [](auto&, auto& hyper) { hyper.beta2 = 1; },
              "lion: betas must be in [0, 1), got 1"),
          error(
              "no gradient", [](auto& t, auto&) { t.grad = Tensor(); },
              "lion: grad of tensor 0 must be floating, got undefined tensor"),
          error(
              "dtype of the state", [](auto& t, auto&) { t.exp_avg = t.exp_avg.To(DType::kBF16); },
              "lion: exp_avg of tensor 0 must be a contiguous f32[2, 3]"),
          error(
              "master of an f32 value", [](auto& t, auto&) { t.master = t.value.Clone(); },
              "lion: tensor 0 has a master, but its value is f32[2, 3]")};
}

OpCase Make() {
  OpCase c;
  c.name = "lion";
  c.dtypes = {DType::kF64, DType::kF32, DType::kBF16};
  c.differentiable = false;
  c.samples = Samples;
  c.errors = Errors;
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
