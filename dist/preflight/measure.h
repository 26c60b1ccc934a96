// How fast ranks exchange data, by the groups that a run uses. All functions are collective.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "dist/preflight/facts.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// `control` and `data` are different groups of all ranks, the first on the host: through it ranks
// learn that others wait in vain in the second one.

// The pairs of PairSchedule, on all ranks, up to the round in which two ranks have not made all of
// their swaps within `patience`: then nothing more can be measured, and `data` never becomes usable
// again. A thread may stay behind in a call of it that does not return.
std::vector<PairFacts> MeasurePairs(ProcessGroup& control,
                                    const std::shared_ptr<ProcessGroup>& data,
                                    const std::vector<std::vector<int>>& machines,
                                    std::chrono::milliseconds patience);

// `bandwidth`: bytes per second that a rank can be expected to send, by which the size is chosen.
SumFacts MeasureSum(ProcessGroup& control, const std::shared_ptr<ProcessGroup>& data,
                    double bandwidth, std::chrono::milliseconds patience);

// Of the first rank of each machine but rank 0's; on rank 0, and nothing on the others. The error
// is half of the shortest round trip.
std::vector<ClockFacts> MeasureClocks(ProcessGroup& control,
                                      const std::vector<std::vector<int>>& machines);

}  // namespace lockstep::dist
