// The first and the last step of Muon for one element, shared by all devices.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/muon/muon.h"

namespace lockstep {

// The factor of the learning rate for a matrix [rows, columns].
inline double MuonFactor(MuonScale scale, int64_t rows, int64_t columns) {
  const double r = static_cast<double>(rows), c = static_cast<double>(columns);
  return scale == MuonScale::kMatchAdamW ? 0.2 * std::sqrt(std::max(r, c))
                                         : std::sqrt(std::max(1.0, r / c));
}

// Updates the momentum, and leaves what is to be orthogonalised in the value.
struct MuonMomentumRule {
  static constexpr char kName[] = "muon_momentum";
  static constexpr int kStates = 1;
  using Hyper = MuonHyper;

  template <class A>
  struct Coefficients {
    A scale, keep, take;
    bool nesterov;

    LS_HOST_DEVICE Coefficients(const StepValues& s, const Hyper& h, double, double)
        : scale(static_cast<A>(GradientScale(s))),
          keep(static_cast<A>(h.momentum)),
          take(static_cast<A>(1 - h.momentum)),
          nesterov(h.nesterov) {}
  };

  template <class A>
  LS_HOST_DEVICE static void Element(const Coefficients<A>& c, A grad, A& out, A* states) {
    A& m = states[0];
    const A g = grad * c.scale;
    m = std::fma(c.take, g - m, m);
    out = c.nesterov ? std::fma(c.keep, m - g, g) : m;
  }
};

// Its arguments; `out` has the matrix's elements, in StateDType.
inline UpdateTensors MomentumUpdate(const UpdateTensors& t, const Tensor& out) {
  UpdateTensors update = t;
  update.value = out;
  update.master = {};
  return update;
}

// p = p (1 - lr weight_decay) - lr factor X, with X in the gradient's place.
struct MuonRule {
  static constexpr char kName[] = "muon_update";
  static constexpr int kStates = 0;
  struct Hyper {
    double factor;
    DecoupledDecay decay;
  };

  template <class A>
  struct Coefficients {
    DecayFactor<A> keep;
    A step;

    LS_HOST_DEVICE Coefficients(const StepValues& s, const Hyper& h, double lr, double weight_decay)
        : keep(s, h.decay, lr, weight_decay), step(static_cast<A>(-lr * h.factor)) {}
  };

  template <class A>
  LS_HOST_DEVICE static void Element(const Coefficients<A>& c, A x, A& p, A*) {
    p = std::fma(c.step, x, p * c.keep(x, p));
  }
};

}  // namespace lockstep
