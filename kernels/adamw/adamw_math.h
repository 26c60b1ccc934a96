// AdamW's arithmetic for one element, shared by all devices.
#pragma once

#include <cmath>

#include "core/philox.h"  // LS_HOST_DEVICE
#include "core/step_state.h"
#include "kernels/adamw/adamw.h"

namespace lockstep {

// What is the same for all elements of a parameter; computed in f64, rounded once to A.
template <class A>
struct AdamWCoefficients {
  A grad_scale, beta2, one_minus_beta1, one_minus_beta2, keep, step_size, sqrt_correction2, eps;

  LS_HOST_DEVICE AdamWCoefficients(const StepValues& s, const AdamWHyper& h, double weight_decay)
      : grad_scale(static_cast<A>(static_cast<double>(s.clip_factor) / s.loss_scale)),
        beta2(static_cast<A>(h.beta2)),
        one_minus_beta1(static_cast<A>(1 - h.beta1)),
        one_minus_beta2(static_cast<A>(1 - h.beta2)),
        keep(static_cast<A>(1 - s.lr * weight_decay)),
        step_size(static_cast<A>(static_cast<double>(s.lr) / s.beta1_correction)),
        sqrt_correction2(static_cast<A>(std::sqrt(static_cast<double>(s.beta2_correction)))),
        eps(static_cast<A>(h.eps)) {}
};

// Products that are added to something stand inside fma, so that no compiler has a choice whether
// to contract; the rest is one exactly rounded operation each.
template <class A>
LS_HOST_DEVICE inline void AdamWElement(const AdamWCoefficients<A>& c, A grad, A& p, A& m, A& v) {
  const A g = grad * c.grad_scale;
  m = std::fma(c.one_minus_beta1, std::fma(grad, c.grad_scale, -m), m);
  v = std::fma(c.one_minus_beta2 * g, g, c.beta2 * v);
  const A denominator = std::sqrt(v) / c.sqrt_correction2 + c.eps;
  p = std::fma(p, c.keep, -(c.step_size * m / denominator));
}

}  // namespace lockstep
