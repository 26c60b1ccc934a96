// Lion's arithmetic for one element, shared by all devices.
#pragma once

#include <cmath>

#include "kernels/lion/lion.h"

namespace lockstep {

struct LionRule {
  static constexpr char kName[] = "lion_update";
  static constexpr int kStates = 1;
  using Hyper = LionHyper;

  template <class A>
  struct Coefficients {
    A grad_scale, beta1, beta2, one_minus_beta1, one_minus_beta2, keep, lr;

    LS_HOST_DEVICE Coefficients(const StepValues& s, const Hyper& h, double rate,
                                double weight_decay)
        : grad_scale(static_cast<A>(GradientScale(s))),
          beta1(static_cast<A>(h.beta1)),
          beta2(static_cast<A>(h.beta2)),
          one_minus_beta1(static_cast<A>(1 - h.beta1)),
          one_minus_beta2(static_cast<A>(1 - h.beta2)),
          keep(static_cast<A>(1 - rate * weight_decay)),
          lr(static_cast<A>(rate)) {}
  };

  template <class A>
  LS_HOST_DEVICE static void Element(const Coefficients<A>& c, A grad, A& p, A* states) {
    A& m = states[0];
    const A g = grad * c.grad_scale;
    const A direction = std::fma(c.one_minus_beta1, g, c.beta1 * m);
    const A step = direction > 0 ? c.lr : direction < 0 ? -c.lr : A(0);
    p = std::fma(p, c.keep, -step);
    m = std::fma(c.one_minus_beta2, g, c.beta2 * m);
  }
};

}  // namespace lockstep
