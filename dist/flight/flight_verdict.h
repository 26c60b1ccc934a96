// Combines the flight records of a run's ranks into a verdict.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dist/flight/flight_record.h"

namespace lockstep::dist {

struct FlightVerdict {
  bool failed = false;        // whether the records show a failure
  std::vector<int> culprits;  // ranks at fault, ascending; empty if unknown
  std::string summary;        // a sentence: who, in which call of which group, why
  std::vector<std::string> details;
};

// The records, by rank, are of one meeting; some may be missing.
FlightVerdict FindVerdict(const std::map<int, FlightRecord>& records);

// The verdict on the records and each rank's last calls in each group, as text for a terminal.
std::string Explain(const FlightVerdict& verdict, const std::map<int, FlightRecord>& records);

// The records in a folder, only those of the meeting that wrote last. Throws InputError if there
// are none or one of them cannot be read.
std::map<int, FlightRecord> ReadFlightRecords(const std::string& folder);

}  // namespace lockstep::dist
