// What follows from a preflight's facts: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dist/groups/comparison.h"
#include "dist/preflight/facts.h"

namespace lockstep::dist {

struct Judgement {
  std::vector<std::string> stops;     // what would stop a run, or make its results wrong
  std::vector<std::string> warnings;  // what would slow it down, or confuse its user
};

// Each is a sentence that names ranks with their machines, and says what to look at. A rank is slow
// if its best bandwidth, or latency, is far worse than that of the median rank; a link, if it is
// far worse than the median of the links of its kind (within a machine, between machines) between
// ranks that are not slow.
Judgement Judge(const PreflightFacts& facts);

// Who says what, by the name of the fact, such as that of a library; the largest party first.
// `member`: RankFacts::versions or settings. Ranks without the name say `missing`.
std::map<std::string, std::vector<Party>> PartiesOf(
    const std::vector<RankFacts>& ranks, std::map<std::string, std::string> RankFacts::*member,
    const std::string& missing);

// The names of the machines, different for each: "node0", or "node0 (machine 2)".
std::vector<std::string> MachineNames(const std::vector<RankFacts>& ranks,
                                      const std::vector<std::vector<int>>& machines);

// The value in the middle, or the larger of the two; 0 of none.
double Median(std::vector<double> values);
// With three digits: "0.0123", "1.5", "1230".
std::string Short(double value);

}  // namespace lockstep::dist
