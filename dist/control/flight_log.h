// The last calls of a rank, as others get to see them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dist/control/store.h"
#include "dist/groups/collective.h"

namespace lockstep::dist {

// Of calls that all ranks make, so that the same number stands for the same call.
class FlightLog {
 public:
  static constexpr int kDepth = 64;
  // Of ToValues().
  static constexpr int kValues = kDepth * static_cast<int>(kCollectiveValues);

  void Add(const Collective& c);
  // The call with that number, if it is among the last kDepth.
  std::optional<Collective> At(int64_t sequence) const;
  int64_t last() const { return last_; }  // 0: none

  std::vector<int64_t> ToValues() const;
  // Anything else than ToValues' result gives a log that holds less.
  static FlightLog FromValues(const int64_t* values, size_t count);
  std::string ToBytes() const;
  static FlightLog FromBytes(const std::string& bytes);

 private:
  std::array<Collective, kDepth> calls_;
  int64_t last_ = 0;
};

// The logs of a group's ranks in a store. Thread-safe.
class PostedLogs {
 public:
  // The store must outlive it.
  PostedLogs(Store* store, int rank, int size) : store_(store), rank_(rank), size_(size) {}

  // This rank's; replaces what it has posted before. StoreError.
  void Post(const FlightLog& log);
  // Of all other ranks: empty logs of those that have posted nothing, or something that is no log.
  // StoreError.
  std::map<int, FlightLog> OfOthers();
  // Once no rank reads it any more. StoreError.
  void Delete();

 private:
  Store* const store_;
  const int rank_, size_;
};

// Throws MismatchError (dist/groups/host_collectives.h) that names the first calls in which the
// logs, by rank, differ; returns where what they have in common is the same.
void CompareLogs(const std::map<int, FlightLog>& logs);

}  // namespace lockstep::dist
