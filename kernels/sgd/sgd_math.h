// SGD's arithmetic for one element, shared by all devices.
#pragma once

#include <cmath>

#include "kernels/sgd/sgd.h"

namespace lockstep {

// Without momentum.
struct SgdRule {
  static constexpr char kName[] = "sgd_update";
  static constexpr int kStates = 0;
  using Hyper = SgdHyper;

  template <class A>
  struct Coefficients {
    A grad_scale, momentum, weight_decay, minus_lr;
    bool nesterov;

    LS_HOST_DEVICE Coefficients(const StepValues& s, const Hyper& h, double lr, double decay)
        : grad_scale(static_cast<A>(GradientScale(s))),
          momentum(static_cast<A>(h.momentum)),
          weight_decay(static_cast<A>(decay)),
          minus_lr(-static_cast<A>(lr)),
          nesterov(h.nesterov) {}
  };

  template <class A>
  LS_HOST_DEVICE static void Element(const Coefficients<A>& c, A grad, A& p, A*) {
    p = std::fma(c.minus_lr, std::fma(c.weight_decay, p, grad * c.grad_scale), p);
  }
};

struct SgdMomentumRule : SgdRule {
  static constexpr int kStates = 1;

  template <class A>
  LS_HOST_DEVICE static void Element(const Coefficients<A>& c, A grad, A& p, A* states) {
    A& m = states[0];
    const A g = std::fma(c.weight_decay, p, grad * c.grad_scale);
    m = std::fma(c.momentum, m, g);
    p = std::fma(c.minus_lr, c.nesterov ? std::fma(c.momentum, m, g) : m, p);
  }
};

}  // namespace lockstep
