#include "optim/update_state.h"

#include <cmath>

namespace lockstep::optim::internal {

ParameterState MakeState(const Parameter& parameter, bool average, bool master) {
  const Tensor value = parameter.value().Detach();
  const DType dtype = value.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  ParameterState state;
  if (average) state.average = Tensor::Zeros(value.shape(), dtype, value.device());
  if (master && SizeOf(value.dtype()) == 2) state.master = value.To(DType::kF32);
  return state;
}

Tensor CheckedValue(const char* optimizer, const Parameter& parameter, const ParameterState& state,
                    const StepState& step) {
  const Tensor value = parameter.value().Detach();
  for (const Tensor* t : {&state.average, &state.master}) {
    if (!t->defined()) continue;
    LS_CHECK(value.device() == t->device() && value.shape() == t->shape() &&
                 (value.dtype() == DType::kF64) == (t->dtype() == DType::kF64),
             optimizer, ": the parameter '", parameter.name(), "' is ", value.Describe(),
             ", but its state was made for ", t->Describe(),
             ": make the optimizer after Materialize");
  }
  LS_CHECK(value.device() == step.device(), optimizer, ": the parameter '", parameter.name(),
           "' is on ", value.device(), ", the StepState on ", step.device());
  return value;
}

void CheckRange(const char* optimizer, const char* name, double value, double low, double high) {
  LS_CHECK(value >= low && value < high, optimizer, ": ", name, " must be in [", low, ", ", high,
           "), got ", value);
}

void CheckNotNegative(const char* optimizer, const char* name, double value) {
  LS_CHECK(value >= 0 && std::isfinite(value), optimizer, ": ", name,
           " must be finite and at least 0, got ", value);
}

void CheckAnyGradient(const char* optimizer, const Optimizer& of, size_t gradients) {
  LS_CHECK(gradients > 0, optimizer, ": none of the ", of.parameters().size(),
           " parameters has a gradient: run Backward before Step, and ZeroGrad after it");
}

void AppendState(const Parameter& parameter, const ParameterState& state,
                 const std::string& average_name, NamedTensors* out) {
  if (state.average.defined()) {
    out->emplace_back(StrCat(parameter.name(), ".", average_name), state.average);
  }
  if (state.master.defined()) out->emplace_back(parameter.name() + ".master", state.master);
}

}  // namespace lockstep::optim::internal
