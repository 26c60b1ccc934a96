// What the updates of all optimizers share: their arguments, the checks of these, and the form of
// their arithmetic.
#pragma once

#include <cmath>
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
  Tensor average{};            // undefined, or of the original; for ops::EmaUpdate, as StateDType
  double weight_decay = 0;
  double lr_factor = 1;    // multiplies the StepState's learning rate
  uint64_t parameter = 0;  // the hash of its name, for stochastic rounding
  ElementPlace place;      // in the unsharded parameter
};

// The same with other tensors: what f makes of each.
template <class F>
UpdateTensors WithTensors(UpdateTensors t, const F& f) {
  t.value = f(t.value);
  t.grad = f(t.grad);
  for (Tensor& state : t.states) state = f(state);
  if (t.master.defined()) t.master = f(t.master);
  if (t.average.defined()) t.average = f(t.average);
  return t;
}

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

// What becomes of decoupled weight decay: p = p (1 - lr weight_decay) - u, with the update u.
struct DecoupledDecay {
  // Whether only weights decay that the update shrinks, too: where u p >= 0 (Chen et al.,
  // "Cautious weight decay", 2025).
  bool cautious = false;
  // It falls on a line from weight_decay at step 0 to nothing at this step; 0: it stays.
  int64_t steps = 0;
};

// The factor of p in such an update.
template <class A>
class DecayFactor {
 public:
  // Of a parameter's learning rate and weight decay.
  LS_HOST_DEVICE DecayFactor(const StepValues& s, const DecoupledDecay& decay, double lr,
                             double weight_decay)
      : keep_(static_cast<A>(1 - lr * (weight_decay * Left(s, decay)))),
        least_(static_cast<A>(decay.cautious ? 0 : -INFINITY)) {}

  // For an element and its update, of which only the sign counts.
  LS_HOST_DEVICE A operator()(A update, A p) const { return update * p < least_ ? A(1) : keep_; }

 private:
  // Which share of the decay is left.
  LS_HOST_DEVICE static double Left(const StepValues& s, const DecoupledDecay& decay) {
    if (decay.steps == 0) return 1;
    const double left = 1 - static_cast<double>(s.step) / static_cast<double>(decay.steps);
    return left > 0 ? left : 0;
  }

  A keep_, least_;
};

namespace ops::internal {

// Throws ArgumentError, in the words of `op`, unless the tensors are as UpdateTensors says, with
// states of these names; then counts them as written.
void PrepareUpdate(const char* op, std::span<const UpdateTensors> tensors,
                   std::span<const char* const> state_names, const StepState& state);

}  // namespace ops::internal
}  // namespace lockstep
