// The average's arithmetic for one element, shared by all devices.
#pragma once

#include <cmath>

#include "kernels/ema/ema.h"

namespace lockstep {

struct EmaRule {
  static constexpr char kName[] = "ema_update";
  static constexpr int kStates = 0;
  using Hyper = EmaHyper;

  template <class A>
  struct Coefficients {
    A rest;  // 1 - d

    LS_HOST_DEVICE Coefficients(const StepValues& s, const Hyper& h, double, double) {
      const double n = static_cast<double>(s.step) + 1, most = (1 + n) / (10 + n);
      rest = static_cast<A>(1 - (h.decay < most ? h.decay : most));
    }
  };

  template <class A>
  LS_HOST_DEVICE static void Element(const Coefficients<A>& c, A weight, A& average, A*) {
    average = std::fma(c.rest, weight - average, average);
  }
};

}  // namespace lockstep
