// The last calls of a rank, as other ranks see them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dist/groups/collective.h"

namespace lockstep::dist {

// Holds only calls that all ranks make, so that a number means the same call on each of them.
class FlightLog {
 public:
  static constexpr int kDepth = 64;
  // The size of ToValues().
  static constexpr int kValues = kDepth * static_cast<int>(kCollectiveValues);

  void Add(const Collective& c);
  // The call with that number, if it is among the last kDepth.
  std::optional<Collective> At(int64_t sequence) const;
  int64_t last() const { return last_; }  // 0: none

  std::vector<int64_t> ToValues() const;
  // Skips values that ToValues does not produce.
  static FlightLog FromValues(const int64_t* values, size_t count);
  std::string ToBytes() const;
  static FlightLog FromBytes(const std::string& bytes);

 private:
  std::array<Collective, kDepth> calls_;
  int64_t last_ = 0;
};

// Throws MismatchError (dist/groups/host_collectives.h), naming the first calls in which the logs,
// by rank, differ. Compares only what all logs cover.
void CompareLogs(const std::map<int, FlightLog>& logs);

}  // namespace lockstep::dist
