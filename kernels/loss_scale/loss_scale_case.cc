#include <cmath>

#include "kernels/loss_scale/loss_scale.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

constexpr LossScaleOptions kOptions = {
    .init = 1024, .growth = 2, .backoff = 0.25, .growth_interval = 3};

// The scaled root, and the scale, good steps and skipped updates after steps whose gradients are
// infinite where `infinite` says so. `from`: before them.
OpSample Sample(const std::string& name, const InputSpec& root, const std::vector<bool>& infinite,
                const LossScale& from = {.scale = 1024}) {
  OpSample s;
  s.name = name;
  s.inputs = {root};
  s.run = [=](TensorSpan in) {
    StepState state(in[0].device(), 1);
    state.EnableLossScaling(kOptions, from);
    const Tensor scaled = ops::ScaleRoot(in[0], state);
    for (size_t step = 0; step < infinite.size(); ++step) {
      state.Begin(static_cast<int64_t>(step), 0.1);
      Tensor::FromStorage(state.tensor().storage(), DType::kI32, {1},
                          offsetof(StepValues, found_inf) / sizeof(int32_t))
          .Fill(infinite[step] ? 1 : 0);
      ops::UpdateLossScale(state);
    }
    const auto after = [&](size_t offset, DType dtype) {
      const int64_t at = static_cast<int64_t>(offsetof(StepValues, loss_scale) + offset);
      return Tensor::FromStorage(state.tensor().storage(), dtype, {1}, at / SizeOf(dtype)).Clone();
    };
    return std::vector{scaled, after(offsetof(LossScale, scale), DType::kF32),
                       after(offsetof(LossScale, good_steps), DType::kI32),
                       after(offsetof(LossScale, skipped), DType::kI64)};
  };
  s.reference = [=](RefSpan in) {
    RefTensor scaled = in[0];
    for (double& x : scaled.data) x *= from.scale;
    double scale = from.scale, good = from.good_steps, skipped = static_cast<double>(from.skipped);
    for (const bool bad : infinite) {
      good = bad ? 0 : good + 1;
      if (bad) scale *= 0.25;
      if (bad) ++skipped;
      if (good < 3) continue;
      if (scale * 2 < 0x1p127) scale *= 2;
      good = 0;
    }
    std::vector<RefTensor> out = {scaled};
    for (const double value : {scale, good, skipped}) out.emplace_back(Shape{1}).data[0] = value;
    return out;
  };
  return s;
}

std::vector<OpSample> Samples() {
  const InputSpec scalar{.shape = {}};
  return {Sample("empty", {.shape = {0, 3}}, {}),
          Sample("strided", {.shape = {5, 9}, .non_contiguous = true}, {false}),
          Sample("grows", scalar, {false, false, false, false}),
          Sample("a skip begins anew", scalar, {false, false, true, false, false}),
          Sample("shrinks below one", scalar, {true, true, true, true, true, true, true}),
          Sample("continued", scalar, {false}, {.scale = 8, .good_steps = 2, .skipped = 5}),
          Sample("never infinite", scalar, {false}, {.scale = 0x1p126f, .good_steps = 2})};
}

std::vector<ErrorSample> Errors() {
  const auto enable = [](const LossScaleOptions& options) {
    return [options](Device d) { StepState(d, 1).EnableLossScaling(options); };
  };
  return {
      {"no scale", enable({.init = 0}), "loss scaling: init must be in ["},
      {"shrinking growth", enable({.growth = 0.5}), "loss scaling: growth must be in [1, "},
      {"growing backoff", enable({.backoff = 2}), "loss scaling: backoff must be in ["},
      {"a scale that rounds", enable({.init = 1000}),
       "loss scaling: init must be a power of two, got 1000: use 512"},
      {"growth that rounds", enable({.growth = 1.5}),
       "loss scaling: growth must be a power of two, got 1.5: use 1"},
      {"backoff that rounds", enable({.backoff = 0.1}),
       "loss scaling: backoff must be a power of two, got 0.1: use 0.0625"},
      {"a scale of another run that rounds",
       [](Device d) { StepState(d, 1).EnableLossScaling({}, LossScale{.scale = 3}); },
       "loss scaling: the scale to continue with must be a power of two, got 3: use 2"},
      {"no interval", enable({.growth_interval = 0}),
       "loss scaling: growth_interval must be at least 1, got 0"},
      {"damaged", [](Device d) { StepState(d, 1).EnableLossScaling({}, LossScale{.scale = NAN}); },
       "loss scaling: cannot continue with a scale of nan"},
      {"integers",
       [](Device d) {
         StepState state(d, 1);
         state.EnableLossScaling();
         (void)ops::ScaleRoot(Zeros(DType::kI32, d), state);
       },
       "scale_root: the root gradient must be f32 or f64 and on cpu as the StepState is"}};
}

// Powers of two are exact.
const bool registered = RegisterOpCase({.name = "loss_scale",
                                        .dtypes = {DType::kF64, DType::kF32},
                                        .samples = Samples,
                                        .errors = Errors,
                                        .tolerances = {{DType::kF64, {}}, {DType::kF32, {}}},
                                        .differentiable = false});

}  // namespace
}  // namespace lockstep
