// The last calls of a rank, as other ranks see them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "dist/collective.h"

namespace lockstep::dist {

// Holds only calls that all ranks make, so that a number means the same call on each of them.
class FlightLog {
 public:
  static constexpr int kDepth = 64;

  void Add(const Collective& c);
  // The call with that number, if it is among the last kDepth.
  std::optional<Collective> At(int64_t sequence) const;
  int64_t last() const { return last_; }  // 0: none

  std::string ToBytes() const;
  // Skips what ToBytes does not produce.
  static FlightLog FromBytes(const std::string& bytes);

 private:
  std::array<Collective, kDepth> calls_;
  int64_t last_ = 0;
};

}  // namespace lockstep::dist
