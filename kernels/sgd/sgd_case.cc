#include "kernels/op_case.h"
#include "kernels/sgd/sgd.h"

namespace lockstep {
namespace {

constexpr double kLr = 0.1, kDecay = 0.1, kLossScale = 4;

void Begin(StepState& state) { state.Begin(/*step=*/3, kLr, 0, 0, kLossScale); }

// Inputs: value, grad, momentum and, optionally, master.
std::vector<Tensor> Run(const SgdHyper& hyper, std::span<const Tensor> in) {
  StepState state(in[0].device(), 1);
  Begin(state);
  std::vector<Tensor> t;
  for (const Tensor& x : in) t.push_back(x.Detach().Contiguous().Clone());
  const DType wide = in[0].dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  for (size_t i = 2; i < t.size(); ++i) t[i] = t[i].To(wide);
  // Only 16-bit values have a master: the others take its part themselves.
  const bool master = t.size() == 4 && SizeOf(t[0].dtype()) == 2;
  if (t.size() == 4 && !master) t[0] = t[3].To(t[0].dtype());
  const SgdTensors tensors = {.value = t[0],
                              .grad = t[1],
                              .momentum = t[2],
                              .master = master ? t[3] : Tensor(),
                              .weight_decay = kDecay};
  ops::SgdUpdate(std::span(&tensors, 1), hyper, state);
  return {t[0], t[2]};
}

std::vector<RefTensor> Reference(const SgdHyper& hyper, std::span<const RefTensor> in) {
  StepState state(kCpu, 1);
  Begin(state);
  const double lr = state.Read().lr;  // as f32 has it
  RefTensor p = in.size() == 4 ? in[3] : in[0], m = in[2];
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
  OpSample s;
  s.name = name;
  s.inputs.assign(master ? 4 : 3, like);
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
  const auto update = [](SgdTensors t, const SgdHyper& hyper, Device d) {
    ops::SgdUpdate(std::span(&t, 1), hyper, StepState(d, 1));
  };
  const auto tensors = [](Device d) {
    const auto zeros = [d] { return Tensor::Zeros({2, 3}, DType::kF32, d); };
    return SgdTensors{.value = zeros(), .grad = zeros(), .momentum = zeros(), .master = {}};
  };
  return {{"momentum of 1", [=](Device d) { update(tensors(d), {.momentum = 1}, d); },
           "sgd: momentum must be in [0, 1), got 1"},
          {"no gradient",
           [=](Device d) {
             SgdTensors t = tensors(d);
             t.grad = Tensor();
             update(t, {}, d);
           },
           "sgd: grad of tensor 0 must be floating, got undefined tensor"},
          {"shape of the gradient",
           [=](Device d) {
             SgdTensors t = tensors(d);
             t.grad = Tensor::Zeros({3, 2}, DType::kF32, d);
             update(t, {}, d);
           },
           "sgd: grad of tensor 0 must be a contiguous f32[2, 3]"},
          {"no momentum",
           [=](Device d) {
             SgdTensors t = tensors(d);
             t.momentum = Tensor();
             update(t, {.momentum = 0.5}, d);
           },
           "sgd: momentum of tensor 0 must be a contiguous f32[2, 3]"},
          {"master of an f32 value",
           [=](Device d) {
             SgdTensors t = tensors(d);
             t.master = t.value.Clone();
             update(t, {}, d);
           },
           "sgd: tensor 0 has a master, but its value is f32[2, 3]"}};
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
