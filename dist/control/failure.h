// Why ranks stop: the failure that they all throw.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "dist/collective.h"

namespace lockstep::dist {

struct Failure {
  CollectiveError::Cause cause = CollectiveError::Cause::kAborted;
  int rank = 0;            // the one that reports it
  std::string group = {};  // in which it happened; empty for the end of a process
  Collective operation = {};
  std::string purpose = {};  // the operation's (the argument of ProcessGroup's calls)
  std::vector<int> culprits = {};
  std::string reason = {};
};

// One for which the rank that reports it is itself to blame.
Failure FailureOf(CollectiveError::Cause cause, int rank, std::string reason);
// The rank has given up: "rank 1 gave up: its group was destroyed by an exception".
Failure GivenUp(int rank, const std::string& reason);

// The error that `rank` throws from the group's `operation` because of the failure.
CollectiveError ErrorOf(const Failure& failure, const std::string& group, int rank,
                        const Collective& operation, const std::string& purpose = "");

// As ranks send them to each other, and write them into flight records. Reading throws an exception
// for what none of `ranks` ranks writes.
OrderedJson ToJson(const Collective& call);
OrderedJson ToJson(const Failure& failure);
Collective CollectiveOf(const Json& j);
Failure FailureOf(const Json& j, int ranks);
int RankOf(const Json& j, int ranks);

// The same as text; nullopt for what no rank writes.
std::string ToText(const Failure& failure);
std::optional<Failure> ParseFailure(const std::string& text, int ranks);

}  // namespace lockstep::dist
