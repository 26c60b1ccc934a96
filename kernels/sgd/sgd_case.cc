#include "kernels/op_case/update_case.h"
#include "kernels/sgd/sgd.h"

namespace lockstep {
namespace {

constexpr double kLr = 0.1, kDecay = 0.1, kLossScale = 4;

void Begin(StepState& state) { state.Begin(/*step=*/3, kLr, 0, 0, kLossScale); }

// Inputs: value, grad, momentum and, optionally, master.
std::vector<Tensor> Run(const SgdHyper& hyper, std::span<const Tensor> in) {
  StepState state(in[0].device(), 1);
  Begin(state);
  const UpdateInputs t = UpdateInputsOf(in, 1);
  const SgdTensors tensors = {.value = t.value,
                              .grad = t.grad,
                              .momentum = t.states[0],
                              .master = t.master,
                              .weight_decay = kDecay};
  ops::SgdUpdate(std::span(&tensors, 1), hyper, state);
  return {t.value, t.states[0]};
}

std::vector<RefTensor> Reference(const SgdHyper& hyper, std::span<const RefTensor> in) {
  StepState state(kCpu, 1);
  Begin(state);
  const double lr = state.Read().lr;  // as f32 has it
  RefTensor p = UpdatedValue(in, 1), m = in[2];
  for (size_t i = 0; i < p.data.size(); ++i) {
    double step = in[1].data[i] / kLossScale + kDecay * p.data[i];
    if (hyper.momentum > 0) {
      m.data[i] = hyper.momentum * m.data[i] + step;
      step = hyper.nesterov ? step + hyper.momentum * m.data[i] : m.data[i];
    }
    p.data[i] -= lr * step;
  }
  return {p, m};
}

OpSample Sample(const std::string& name, const InputSpec& like, const SgdHyper& hyper,
                bool master = false) {
  OpSample s = UpdateSample(name, like, 1, master);
  s.run = [=](std::span<const Tensor> in) { return Run(hyper, in); };
  s.reference = [=](std::span<const RefTensor> in) { return Reference(hyper, in); };
  return s;
}

std::vector<OpSample> Samples() {
  constexpr SgdHyper kPlain = {}, kMomentum = {.momentum = 0.9},
                     kNesterov = {.momentum = 0.9, .nesterov = true};
  OpSample f32_grad = Sample("f32 gradient", {.shape = {37}}, kNesterov);
  f32_grad.inputs[1].dtype = DType::kF32;
  OpSample large = Sample("16 million", {.shape = {4096, 4096}}, kMomentum);
  large.flops = 4096.0 * 4096 * 7;
  large.elements_moved = 4096.0 * 4096 * 5;
  large.benchmark_only = true;
  return {Sample("empty", {.shape = {0, 3}}, kMomentum),
          Sample("one", {.shape = {1}}, kNesterov),
          Sample("plain", {.shape = {7, 13}}, kPlain),
          Sample("momentum", {.shape = {7, 13}}, kMomentum),
          Sample("nesterov", {.shape = {7, 13}}, kNesterov),
          Sample("several chunks", {.shape = {3, 11003}}, kNesterov),
          Sample("strided", {.shape = {5, 9}, .non_contiguous = true}, kMomentum),
          Sample("master", {.shape = {7, 13}}, kMomentum, true),
          Sample("master, plain", {.shape = {7, 13}}, kPlain, true),
          f32_grad,
          large};
}

std::vector<ErrorSample> Errors() {
  using T = SgdTensors;
  const UpdateErrors<T, SgdHyper> error(ops::SgdUpdate, {&T::value, &T::grad, &T::momentum});
  return {error(
              "momentum of 1", [](auto&, auto& hyper) { hyper.momentum = 1; },
              "sgd: momentum must be in [0, 1), got 1"),
          error(
              "no gradient", [](auto& t, auto&) { t.grad = Tensor(); },
              "sgd: grad of tensor 0 must be floating, got undefined tensor"),
          error(
              "shape of the gradient",
              [](auto& t, auto&) {
                t.grad = t.grad.View({3, 2});
              },
              "sgd: grad of tensor 0 must be a contiguous f32[2, 3]"),
          error(
              "no momentum",
              [](auto& t, auto& hyper) {
                t.momentum = Tensor();
                hyper.momentum = 0.5;
              },
              "sgd: momentum of tensor 0 must be a contiguous f32[2, 3]"),
          error(
              "master of an f32 value", [](auto& t, auto&) { t.master = t.value.Clone(); },
              "sgd: tensor 0 has a master, but its value is f32[2, 3]")};
}

OpCase Make() {
  OpCase c;
  c.name = "sgd";
  c.dtypes = {DType::kF64, DType::kF32, DType::kBF16};
  c.differentiable = false;
  c.samples = Samples;
  c.errors = Errors;
  return c;
}

const bool registered = RegisterOpCase(Make);

}  // namespace
}  // namespace lockstep
