// Hostile messages of the control plane, as from a rank that has proved itself but runs another
// program: what is not a message is refused, and what is one is read as it was written.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dist/control/claim.h"
#include "dist/control/failure.h"
#include "dist/control/frame.h"
#include "dist/flight/flight_log.h"
#include "dist/groups/comparison.h"

namespace lockstep::dist {
namespace {

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

// What ranks make of a message's body.
void TryBody(const std::string& body) {
  if (const auto claim = Claim::Parse(body)) {
    const auto again = Claim::Parse(claim->ToText());
    Require(again && again->ToText() == claim->ToText());
  }
  if (const auto failure = ParseFailure(body, /*size=*/8)) {
    const auto again = ParseFailure(ToText(*failure), 8);
    Require(again && ToText(*again) == ToText(*failure));
  }
  const FlightLog log = FlightLog::FromBytes(body);
  Require(FlightLog::FromBytes(log.ToBytes()).ToBytes() == log.ToBytes());
  // What can be read stays as it is.
  const std::string merged = MergeTexts(body, "");
  Require(MergeTexts(merged, "") == merged && MergeTexts("", body).size() <= body.size());
  MergeTexts(body, body);
}

void Try(std::string_view bytes) {
  Frame frame;
  while (true) {
    const auto size = Decode(bytes, &frame);
    if (!size || *size == 0) return;
    Require(*size <= bytes.size());
    std::string written;
    Encode(frame, &written);
    Require(written == bytes.substr(0, *size));
    Frame part;
    Require(Decode(bytes.substr(0, *size - 1), &part) == size_t{0});
    TryBody(frame.body);
    bytes.remove_prefix(*size);
  }
}

}  // namespace
}  // namespace lockstep::dist

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  lockstep::dist::Try(bytes);
  lockstep::dist::TryBody(std::string(bytes));
  return 0;
}
