#include "kernels/lion/lion.h"
#include "kernels/op_case.h"

namespace lockstep {
namespace {

constexpr LionHyper kHyper = {.beta1 = 0.9, .beta2 = 0.95};
constexpr double kLr = 0.1, kDecay = 0.3, kLossScale = 4;

void Begin(StepState& state) { state.Begin(/*step=*/3, kLr, 0, 0, kLossScale); }

// Inputs: value, grad, exp_avg and, optionally, master.
std::vector<Tensor> Run(std::span<const Tensor> in) {
  StepState state(in[0].device(), 1);
  Begin(state);
  std::vector<Tensor> t;
  for (const Tensor& x : in) t.push_back(x.Detach().Contiguous().Clone());
  const DType wide = in[0].dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  for (size_t i = 2; i < t.size(); ++i) t[i] = t[i].To(wide);
  // Only 16-bit values have a master: the others take its part themselves.
  const bool master = t.size() == 4 && SizeOf(t[0].dtype()) == 2;
  if (t.size() == 4 && !master) t[0] = t[3].To(t[0].dtype());
  const LionTensors tensors = {.value = t[0],
                               .grad = t[1],
                               .exp_avg = t[2],
                               .master = master ? t[3] : Tensor(),
                               .weight_decay = kDecay};
  ops::LionUpdate(std::span(&tensors, 1), kHyper, state);
  return {t[0], t[2]};
}

std::vector<RefTensor> Reference(std::span<const RefTensor> in) {
  StepState state(kCpu, 1);
  Begin(state);
  const double lr = state.Read().lr;  // as f32 has it
  RefTensor p = in.size() == 4 ? in[3] : in[0], m = in[2];
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
  OpSample s;
  s.name = name;
  s.inputs.assign(master ? 4 : 3, like);
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
  const auto update = [](LionTensors t, const LionHyper& hyper, Device d) {
    ops::LionUpdate(std::span(&t, 1), hyper, StepState(d, 1));
  };
  const auto tensors = [](Device d) {
    const auto zeros = [d] { return Tensor::Zeros({2, 3}, DType::kF32, d); };
    return LionTensors{.value = zeros(), .grad = zeros(), .exp_avg = zeros(), .master = {}};
  };
  return {{"beta of 1", [=](Device d) { update(tensors(d), {.beta2 = 1}, d); },
           "lion: betas must be in [0, 1), got 1"},
          {"no gradient",
           [=](Device d) {
             LionTensors t = tensors(d);
             t.grad = Tensor();
             update(t, {}, d);
           },
           "lion: grad of tensor 0 must be floating, got undefined tensor"},
          {"dtype of the state",
           [=](Device d) {
             LionTensors t = tensors(d);
             t.exp_avg = t.exp_avg.To(DType::kBF16);
             update(t, {}, d);
           },
           "lion: exp_avg of tensor 0 must be a contiguous f32[2, 3]"},
          {"master of an f32 value",
           [=](Device d) {
             LionTensors t = tensors(d);
             t.master = t.value.Clone();
             update(t, {}, d);
           },
           "lion: tensor 0 has a master, but its value is f32[2, 3]"}};
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
