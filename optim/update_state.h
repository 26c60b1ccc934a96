// What optimizers that update by a kernel of their own share: the state of a parameter and checks.
#pragma once

#include <string>

#include "core/parameter.h"
#include "core/step_state.h"
#include "optim/optimizer.h"

namespace lockstep::optim::internal {

// The tensors that an optimizer keeps for a parameter.
struct ParameterState {
  Tensor average;  // of gradients; undefined if the optimizer keeps none
  Tensor master;   // the f32 original of a 16-bit parameter; else undefined
};

// Zeros of f32 (f64 for an f64 parameter) if there is to be an average, and the master if wanted.
ParameterState MakeState(const Parameter& parameter, bool average, bool master);

// The parameter's value, checked: it has not changed device, dtype or shape since `state` was made.
// Throws ArgumentError in the words of `optimizer`.
Tensor CheckedValue(const char* optimizer, const Parameter& parameter, const ParameterState& state,
                    const StepState& step);

// Throws ArgumentError unless low <= value < high.
void CheckRange(const char* optimizer, const char* name, double value, double low, double high);
// Throws ArgumentError unless 0 <= value, finite.
void CheckNotNegative(const char* optimizer, const char* name, double value);
// Throws ArgumentError if none of the parameters has a gradient.
void CheckAnyGradient(const char* optimizer, const Optimizer& of, size_t gradients);

// Appends "<parameter>.<average_name>" and "<parameter>.master", as far as they are there.
void AppendState(const Parameter& parameter, const ParameterState& state,
                 const std::string& average_name, NamedTensors* out);

}  // namespace lockstep::optim::internal
