// Lion's arithmetic for one element, shared by all devices.
#pragma once

#include <cmath>

#include "core/philox.h"  // LS_HOST_DEVICE
#include "core/step_state.h"
#include "kernels/lion/lion.h"

namespace lockstep {

// What is the same for all elements of a parameter; computed in f64, rounded once to A.
template <class A>
struct LionCoefficients {
  A grad_scale, beta1, beta2, one_minus_beta1, one_minus_beta2, keep, lr;

  LS_HOST_DEVICE LionCoefficients(const StepValues& s, const LionHyper& h, double weight_decay)
      : grad_scale(static_cast<A>(static_cast<double>(s.clip_factor) / s.loss_scale)),
        beta1(static_cast<A>(h.beta1)),
        beta2(static_cast<A>(h.beta2)),
        one_minus_beta1(static_cast<A>(1 - h.beta1)),
        one_minus_beta2(static_cast<A>(1 - h.beta2)),
        keep(static_cast<A>(1 - s.lr * weight_decay)),
        lr(static_cast<A>(s.lr)) {}
};

// Products that are added to something stand inside fma, so that no compiler has a choice whether
// to contract.
template <class A>
LS_HOST_DEVICE inline void LionElement(const LionCoefficients<A>& c, A grad, A& p, A& m) {
  const A g = grad * c.grad_scale;
  const A direction = std::fma(c.one_minus_beta1, g, c.beta1 * m);
  const A step = direction > 0 ? c.lr : direction < 0 ? -c.lr : A(0);
  p = std::fma(p, c.keep, -step);
  m = std::fma(c.one_minus_beta2, g, c.beta2 * m);
}

}  // namespace lockstep
