#include "dist/flight/flight_log.h"

#include <algorithm>
#include <cstring>

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

std::string FlightLog::ToBytes() const {
  std::string bytes;
  for (const Collective& c : calls_) {
    const auto values = ToValues(c);
    bytes.append(reinterpret_cast<const char*>(values.data()), sizeof(values));
  }
  return bytes;
}

FlightLog FlightLog::FromBytes(const std::string& bytes) {
  FlightLog log;
  std::array<int64_t, kCollectiveValues> values;
  for (size_t at = 0; at + sizeof(values) <= bytes.size(); at += sizeof(values)) {
    std::memcpy(values.data(), bytes.data() + at, sizeof(values));
    const auto call = CollectiveFromValues(values);
    if (call && call->sequence > 0) log.Add(*call);
  }
  return log;
}

}  // namespace lockstep::dist
