// What a rank's groups did last, and why they ended: one file per rank, for people and for
// tools/flight, which compares all ranks' files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dist/control/failure_board.h"

namespace lockstep::dist {

struct FlightCall {
  enum class State { kWaiting, kRunning, kDone };

  Collective call;
  std::string purpose;  // the argument of ProcessGroup's calls
  State state = State::kWaiting;
  double submitted = 0, ended = 0;  // Unix time in seconds; 0: not yet
};

// "waiting", "running", "done"
std::string_view Name(FlightCall::State state);

struct FlightGroup {
  std::vector<FlightCall> calls;   // the last ones, in order
  std::optional<Failure> failure;  // what ended the group, as this rank learned it
};

struct FlightRecord {
  int rank = 0, ranks = 1;
  int64_t process = 0;
  std::string host;
  // See World::meeting.
  std::string meeting;
  double written = 0;  // Unix time in seconds
  std::string error;   // the exception that ended the rank; "": none so far
  std::map<std::string, FlightGroup> groups;
};

std::string ToJson(const FlightRecord& record);
// Throws InputError, naming the file, unless ToJson wrote the text.
FlightRecord ParseFlightRecord(const std::string& text, const std::string& file);

// "rank-3.json"
std::string FlightFileName(int rank);

}  // namespace lockstep::dist
