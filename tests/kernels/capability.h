// Simulated GPUs of other kinds.
#pragma once

#include <utility>

#include "cudasim/settings.h"

namespace lockstep::test {

// During its lifetime simulated GPUs have ten times this compute capability.
class Capability {
 public:
  explicit Capability(int capability)
      : before_(std::exchange(cudasim::runtime::GetSettings().capability, capability)) {}
  ~Capability() { cudasim::runtime::GetSettings().capability = before_; }
  Capability(const Capability&) = delete;
  Capability& operator=(const Capability&) = delete;

 private:
  const int before_;
};

}  // namespace lockstep::test
