// SGD's arithmetic for one element, shared by all devices.
#pragma once

#include <cmath>

#include "core/philox.h"  // LS_HOST_DEVICE
#include "core/step_state.h"
#include "kernels/sgd/sgd.h"

namespace lockstep {

// What is the same for all elements of a parameter; computed in f64, rounded once to A.
template <class A>
struct SgdCoefficients {
  A grad_scale, momentum, weight_decay, minus_lr;
  bool nesterov;

  LS_HOST_DEVICE SgdCoefficients(const StepValues& s, const SgdHyper& h, double decay)
      : grad_scale(static_cast<A>(static_cast<double>(s.clip_factor) / s.loss_scale)),
        momentum(static_cast<A>(h.momentum)),
        weight_decay(static_cast<A>(decay)),
        minus_lr(-static_cast<A>(s.lr)),
        nesterov(h.nesterov) {}
};

// Products that are added to something stand inside fma, so that no compiler has a choice whether
// to contract.
template <class A>
LS_HOST_DEVICE inline void SgdElement(const SgdCoefficients<A>& c, A grad, A& p) {
  p = std::fma(c.minus_lr, std::fma(c.weight_decay, p, grad * c.grad_scale), p);
}

template <class A>
LS_HOST_DEVICE inline void SgdMomentumElement(const SgdCoefficients<A>& c, A grad, A& p, A& m) {
  const A g = std::fma(c.weight_decay, p, grad * c.grad_scale);
  m = std::fma(c.momentum, m, g);
  p = std::fma(c.minus_lr, c.nesterov ? std::fma(c.momentum, m, g) : m, p);
}

}  // namespace lockstep
