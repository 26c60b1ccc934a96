#include "dist/control/flight_log.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "dist/groups/host_collectives.h"

namespace lockstep::dist {
namespace {

size_t Slot(int64_t sequence) { return static_cast<size_t>(sequence % FlightLog::kDepth); }

}  // namespace

void FlightLog::Add(const Collective& c) {
  calls_[Slot(c.sequence)] = c;
  last_ = std::max(last_, c.sequence);
}

std::optional<Collective> FlightLog::At(int64_t sequence) const {
  if (sequence < 1 || sequence > last_ || sequence <= last_ - kDepth) return std::nullopt;
  const Collective& c = calls_[Slot(sequence)];
  if (c.sequence != sequence) return std::nullopt;
  return c;
}

std::vector<int64_t> FlightLog::ToValues() const {
  std::vector<int64_t> values;
  for (const Collective& c : calls_) {
    for (const int64_t value : dist::ToValues(c)) values.push_back(value);
  }
  return values;
}

FlightLog FlightLog::FromValues(const int64_t* values, size_t count) {
  FlightLog log;
  for (size_t i = 0; i + kCollectiveValues <= count; i += kCollectiveValues) {
    const auto call = CollectiveFromValues({values + i, kCollectiveValues});
    if (call && call->sequence > 0) log.Add(*call);
  }
  return log;
}

std::string FlightLog::ToBytes() const {
  const std::vector<int64_t> values = ToValues();
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t)};
}

FlightLog FlightLog::FromBytes(const std::string& bytes) {
  std::vector<int64_t> values(bytes.size() / sizeof(int64_t));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(int64_t));
  return FromValues(values.data(), values.size());
}

void CompareLogs(const std::map<int, FlightLog>& logs) {
  int64_t common = std::numeric_limits<int64_t>::max();
  for (const auto& [rank, log] : logs) common = std::min(common, log.last());
  for (int64_t s = std::max<int64_t>(1, common - FlightLog::kDepth + 1); s <= common; ++s) {
    std::map<int, Collective> calls;
    for (const auto& [rank, log] : logs) {
      if (const auto call = log.At(s)) calls[rank] = *call;
    }
    if (!calls.empty()) CompareCalls(calls);
  }
}

}  // namespace lockstep::dist
