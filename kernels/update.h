// What the updates of all optimizers share: their arguments, the checks of these, and the form of
// their arithmetic.
#pragma once

#include <span>
#include <vector>

#include "core/step_state.h"
#include "core/tensor.h"
#include "kernels/stochastic_rounding.h"

namespace lockstep {

// One parameter's part of an update. All of one shape, contiguous, on the StepState's device.
//
// The updates of kernels/{adamw,lion,sgd,muon} take all parameters at once. They read step,
// learning rate and the factors of gradients from the StepState on its device; where its found_inf
// is set nothing changes, not a bit. They throw ArgumentError for tensors that do not fit.
//
// A value without a wider original (a bf16 value without master, or a bf16 state) is rounded
// stochastically (kernels/stochastic_rounding.h): with rounding to nearest, small updates would be
// lost.
struct UpdateTensors {
  Tensor value;                // f64, f32, bf16, or f16 with a master; written
  Tensor grad;                 // floating
  std::vector<Tensor> states;  // what the optimizer keeps, of StateDType or all bf16; written
  Tensor master;               // undefined, or the f32 original of a 16-bit value; written
  double weight_decay = 0;
  double lr_factor = 1;    // multiplies the StepState's learning rate
  uint64_t parameter = 0;  // the hash of its name, for stochastic rounding
  ElementPlace place;      // in the unsharded parameter
};

// The dtype in which an optimizer computes, and by default keeps, state about a value: f64 for f64,
// else f32.
inline DType StateDType(const Tensor& value) { return AccumulationDType(value.dtype()); }

// The arithmetic of an elementwise update is a Rule, which cpu::UpdateAll and cuda::UpdateAll run:
//   struct SgdRule {
//     static constexpr char kName[] = "sgd_update";
//     static constexpr int kStates = 0;  // tensors of state, at most kMostStates
//     using Hyper = SgdHyper;            // trivially copyable
//     // What is the same for all elements of a parameter; computed in f64, rounded once to A.
//     template <class A>
//     struct Coefficients {
//       LS_HOST_DEVICE Coefficients(const StepValues&, const Hyper&, double lr, double decay);
//     };
//     template <class A>
//     LS_HOST_DEVICE static void Element(const Coefficients<A>&, A grad, A& p, A* states);
//   };
// So that bits depend on neither device nor compiler, Element puts products that are added to
// something inside fma; the rest is one exactly rounded operation each.
inline constexpr int kMostStates = 2;

// What updates multiply gradients by.
LS_HOST_DEVICE inline double GradientScale(const StepValues& s) {
  return static_cast<double>(s.clip_factor) / s.loss_scale.scale;
}

namespace ops::internal {

// Throws ArgumentError, in the words of `op`, unless the tensors are as UpdateTensors says, with
// states of these names; then counts them as written.
void PrepareUpdate(const char* op, std::span<const UpdateTensors> tensors,
                   std::span<const char* const> state_names, const StepState& state);

}  // namespace ops::internal
}  // namespace lockstep
