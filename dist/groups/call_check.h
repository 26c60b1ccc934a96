// Whether ranks call the same, for groups that do not find out by themselves: over another group of
// the same ranks, on the host, of which each of these is a call. They throw MismatchError on the
// ranks that can see it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dist/control/flight_log.h"
#include "dist/groups/host_collectives.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// All ranks.
void CheckCollective(ProcessGroup& control, const Collective& c);
// Of an all_to_all: what rank p gets is what it expects.
void CheckParts(ProcessGroup& control, const Collective& c, std::span<const int64_t> input_counts,
                std::span<const int64_t> output_counts);
// This rank and its peers.
void CheckTransfers(ProcessGroup& control, const Collective& c,
                    const std::vector<Transfer>& transfers);
// All ranks' hashes of all calls so far; the logs, which each rank has, tell the first difference.
void CheckHistory(ProcessGroup& control, const Collective& c, uint64_t hash, const FlightLog& log);

// What the transfers move between this rank and each other, by rank.
std::vector<PairTraffic> TrafficOf(const std::vector<Transfer>& transfers, int size);
// Throws unless `theirs`, the peer's view of it, is the mirror image of `mine`.
void ComparePair(const Collective& c, int rank, int peer, const PairTraffic& mine,
                 const PairTraffic& theirs);

}  // namespace lockstep::dist
