// Checks that ranks make the same call, for groups that cannot tell by themselves: the words that
// each rank brings to a comparison, and the verdict on them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist/flight/flight_log.h"
#include "dist/groups/comparison.h"
#include "dist/groups/host_collectives.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// A call and what it is for, and the comparison of all ranks' calls. Throws MismatchError unless
// all are the same.
std::string TextOf(const Collective& c, const std::string& purpose);
void CompareCallsAndPurposes(const std::vector<Party>& parties);
// `c`, which compares them, a hash of all calls so far and of what they were for, and the last of
// them. Throws MismatchError unless the hashes are equal, with the first difference.
std::string TextOf(const Collective& c, uint64_t hash, const FlightLog& log);
void CompareHistories(const std::vector<Party>& parties, const Collective& c);
// What this rank sends to a peer, and expects of it. Throws MismatchError unless the peer says the
// opposite. Ranks are the world's.
std::string TextOf(const PairTraffic& traffic);
void ComparePair(const std::vector<Party>& parties, const Collective& c, int rank, int peer,
                 const PairTraffic& mine);

// The traffic between this rank and each other one, by rank within the group.
std::vector<PairTraffic> TrafficOf(const std::vector<Transfer>& transfers, int size);
std::vector<PairTraffic> TrafficOf(std::span<const int64_t> input_counts,
                                   std::span<const int64_t> output_counts);
// Throws unless `theirs`, the peer's view of it, is the mirror image of `mine`. Ranks are the
// world's.
void ComparePair(const Collective& c, int rank, int peer, const PairTraffic& mine,
                 const PairTraffic& theirs);

}  // namespace lockstep::dist
