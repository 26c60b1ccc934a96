#include <algorithm>

#include "kernels/ema/ema.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

// Inputs: the weight, and its average. `master`: a value of 16 bits is only zeros, and its master
// the weight.
OpSample Sample(const std::string& name, const InputSpec& like, int64_t step, double decay,
                bool master = false) {
  OpSample s;
  s.name = name;
  s.inputs = {like, like};
  s.inputs[1].dtype = DType::kF32;
  s.run = [=](TensorSpan in) {
    const auto copy = [](const Tensor& x) { return x.Detach().Contiguous().Clone(); };
    const DType wide = StateDType(in[0]);
    UpdateTensors t{.value = copy(in[0]), .grad = {}, .states = {}, .master = {}};
    if (master && SizeOf(t.value.dtype()) == 2) {
      t.master = t.value.To(wide);
      t.value.Fill(0);
    }
    t.average = copy(in[1]).To(wide);
    StepState state(in[0].device(), 1);
    state.Begin(step, /*lr=*/1);
    ops::EmaUpdate(std::span(&t, 1), {.decay = decay}, state);
    return t.average;
  };
  s.reference = [=](RefSpan in) {
    const auto n = static_cast<double>(step + 1);
    const double d = std::min(decay, (1 + n) / (10 + n));
    RefTensor average = in[1];
    for (size_t i = 0; i < average.data.size(); ++i) {
      average.data[i] = d * average.data[i] + (1 - d) * in[0].data[i];
    }
    return average;
  };
  return s;
}

std::vector<OpSample> Samples() {
  OpSample large = Sample("16 million", {.shape = {4096, 4096}}, 5000, 0.999);
  large.benchmark = {.flops = 4096.0 * 4096 * 3, .elements = 4096.0 * 4096 * 3};
  return {Sample("empty", {.shape = {0, 3}}, 0, 0.9),
          Sample("first", {.shape = {1}}, 0, 0.9),
          Sample("early", {.shape = {7, 13}}, 5, 0.999),
          Sample("late", {.shape = {3, 11003}}, 5000, 0.99),
          Sample("without memory", {.shape = {5}}, 5000, 0),
          Sample("strided", {.shape = {5, 9}, .non_contiguous = true}, 80, 0.9),
          Sample("master", {.shape = {7, 13}}, 80, 0.9, true),
          large};
}

std::vector<ErrorSample> Errors() {
  const auto run = [](const Tensor& value, const Tensor& average, double decay) {
    UpdateTensors t{.value = value, .grad = {}, .states = {}, .master = {}};
    t.average = average;
    StepState state(value.device(), 1);
    state.Begin(0, 1);
    ops::EmaUpdate(std::span(&t, 1), {.decay = decay}, state);
  };
  return {{"decay of 1", [=](Device d) { run(Zeros(d, 2), Zeros(d, 2), 1); },
           "ema: decay must be in [0, 1), got 1"},
          {"shape", [=](Device d) { run(Zeros(d, 2, 3), Zeros(d, 3, 2), 0.9); },
           "ema: grad of tensor 0 must be a contiguous f32[3, 2]"},
          {"dtype", [=](Device d) { run(Zeros(d, 2), Zeros(DType::kBF16, d, 2), 0.9); },
           "ema: the average of tensor 0 must be f32, got bf16[2]"}};
}

const bool registered =
    RegisterOpCase({.name = "ema", .samples = Samples, .errors = Errors, .differentiable = false});

}  // namespace
}  // namespace lockstep
