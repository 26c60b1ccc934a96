// Checks that ranks make the same call, for groups that cannot tell by themselves. Each check is a
// call of a host group over the same ranks, and throws MismatchError on the ranks that can see a
// difference.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dist/control/flight_log.h"
#include "dist/groups/host_collectives.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Compares the calls of all ranks.
void CheckCollective(ProcessGroup& control, const Collective& c);
// Compares the counts of an all_to_all: each rank must get what it expects.
void CheckParts(ProcessGroup& control, const Collective& c, std::span<const int64_t> input_counts,
                std::span<const int64_t> output_counts);
// Compares the transfers of this rank and its peers.
void CheckTransfers(ProcessGroup& control, const Collective& c,
                    const std::vector<Transfer>& transfers);
// Compares all ranks' hashes of their calls so far; if they differ, the logs show the first
// difference.
void CheckHistory(ProcessGroup& control, const Collective& c, uint64_t hash, const FlightLog& log);

// The traffic between this rank and each other one, by rank.
std::vector<PairTraffic> TrafficOf(const std::vector<Transfer>& transfers, int size);
// Throws unless `theirs`, the peer's view of it, is the mirror image of `mine`.
void ComparePair(const Collective& c, int rank, int peer, const PairTraffic& mine,
                 const PairTraffic& theirs);

}  // namespace lockstep::dist
