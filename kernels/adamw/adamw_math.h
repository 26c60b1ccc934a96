// AdamW's arithmetic for one element, shared by all devices.
#pragma once

#include <cmath>

#include "kernels/adamw/adamw.h"

namespace lockstep {

struct AdamWRule {
  static constexpr char kName[] = "adamw_update";
  static constexpr int kStates = 2;
  using Hyper = AdamWHyper;

  template <class A>
  struct Coefficients {
    A grad_scale, beta2, one_minus_beta1, one_minus_beta2, step_size, sqrt_correction2, eps;
    DecayFactor<A> keep;

    LS_HOST_DEVICE Coefficients(const StepValues& s, const Hyper& h, double lr, double weight_decay)
        : grad_scale(static_cast<A>(GradientScale(s))),
          beta2(static_cast<A>(h.beta2)),
          one_minus_beta1(static_cast<A>(1 - h.beta1)),
          one_minus_beta2(static_cast<A>(1 - h.beta2)),
          step_size(static_cast<A>(lr / s.corrections[h.correction].first)),
          sqrt_correction2(
              static_cast<A>(std::sqrt(static_cast<double>(s.corrections[h.correction].second)))),
          eps(static_cast<A>(h.eps)),
          keep(s, h.decay, lr, weight_decay) {}
  };

  template <class A>
  LS_HOST_DEVICE static void Element(const Coefficients<A>& c, A grad, A& p, A* states) {
    A &m = states[0], &v = states[1];
    const A g = grad * c.grad_scale;
    m = std::fma(c.one_minus_beta1, std::fma(grad, c.grad_scale, -m), m);
    v = std::fma(c.one_minus_beta2 * g, g, c.beta2 * v);
    const A denominator = std::sqrt(v) / c.sqrt_correction2 + c.eps;
    const A update = c.step_size * m / denominator;
    p = std::fma(p, c.keep(update, p), -update);
  }
};

}  // namespace lockstep
