// Why ranks stop: the failure that they all throw.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist/collective.h"

namespace lockstep::dist {

struct Failure {
  CollectiveError::Cause cause = CollectiveError::Cause::kAborted;
  int rank = 0;       // the one that reports it
  std::string group;  // in which it happened; empty for the end of a process
  Collective operation;
  std::string purpose;  // the operation's (the argument of ProcessGroup's calls)
  std::vector<int> culprits;
  std::string reason;
};

// One for which the rank that reports it is itself to blame.
Failure FailureOf(CollectiveError::Cause cause, int rank, std::string reason);

// The error that `rank` throws from the group's `operation` because of the failure.
CollectiveError ErrorOf(const Failure& failure, const std::string& group, int rank,
                        const Collective& operation, const std::string& purpose = "");

// The failure as ranks send it to each other. Parsing returns nullopt for text that no rank of a
// group of `size` writes.
std::string ToText(const Failure& failure);
std::optional<Failure> ParseFailure(const std::string& text, int size);

}  // namespace lockstep::dist
