// Looks, before a long run, at what the run will depend on: `launch --check`.
#pragma once

#include <chrono>
#include <iosfwd>

#include "core/device.h"
#include "core/error.h"
#include "dist/control/rendezvous.h"

namespace lockstep::dist {

struct PreflightOptions {
  // How long ranks wait for each other at the start, and in each collective.
  std::chrono::milliseconds join = std::chrono::minutes(2), timeout = std::chrono::seconds(30);
  // How long a pair of ranks may take for all that it exchanges, PairFacts::kSwaps swaps, before
  // the two are said not to reach each other, or only slowly; and all ranks for the all-reduces.
  // Less than `timeout`, so that they can still say so.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

// Something was found that would stop a run.
class PreflightError : public Error {
 public:
  using Error::Error;
};

// This rank's part, in which it meets the others as in a run and exchanges data with them from its
// device; rank 0 writes the report. Throws, on all ranks, ConnectionError if they do not meet,
// CollectiveError if one of them ends or stops, and PreflightError. After an error groups and
// device are of no use: end the process.
void RunPreflight(const Rendezvous& rendezvous, Device device, std::ostream& report,
                  const PreflightOptions& options = {});

}  // namespace lockstep::dist
