// What the flight records of a run's ranks say together.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dist/control/flight_record.h"

namespace lockstep::dist {

struct FlightVerdict {
  std::vector<int> culprits;  // ranks at fault, ascending; empty if that cannot be told
  std::string summary;        // a sentence: who, in which call of which group, for what
  std::vector<std::string> details;
};

// Of records of one meeting, by rank; some may be missing.
FlightVerdict Judge(const std::map<int, FlightRecord>& records);

// The verdict, and what each rank did last in each group, as lines for a terminal.
std::string Explain(const std::map<int, FlightRecord>& records);

// The records in a folder: those of the meeting that wrote last. InputError where there are none,
// or one of them cannot be read.
std::map<int, FlightRecord> ReadFlightRecords(const std::string& folder);

}  // namespace lockstep::dist
