#include "dist/control/failure.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/io/json.h"

namespace lockstep::dist {
namespace {

using nlohmann::json;

// These throw for values that no rank writes.
int NumberBelow(const json& j, int limit) { return static_cast<int>(IntegerOf(j, 0, limit - 1)); }

std::vector<int> RanksOf(const json& j, int size) {
  if (!j.is_array()) throw Error("a value is not a list");
  std::vector<int> ranks;
  for (const json& rank : j) ranks.push_back(NumberBelow(rank, size));
  return ranks;
}

Collective CollectiveOf(const json& j) {
  const auto call = CollectiveFromValues(IntegersOf(j));
  if (!call) throw Error("an operation is invalid");
  return *call;
}

}  // namespace

Failure FailureOf(CollectiveError::Cause cause, int rank, std::string reason) {
  Failure failure;
  failure.cause = cause;
  failure.rank = rank;
  failure.culprits = {rank};
  failure.reason = std::move(reason);
  return failure;
}

std::string ToText(const Failure& f) {
  return DumpJson(json{{"cause", static_cast<int>(f.cause)},
                       {"rank", f.rank},
                       {"group", f.group},
                       {"operation", ToValues(f.operation)},
                       {"purpose", f.purpose},
                       {"culprits", f.culprits},
                       {"reason", f.reason}});
}

std::optional<Failure> ParseFailure(const std::string& text, int size) {
  const json j = TryParseJson(text);
  try {
    Failure f;
    f.cause = static_cast<CollectiveError::Cause>(
        NumberBelow(j.at("cause"), static_cast<int>(CollectiveError::Cause::kCorrupt) + 1));
    f.rank = NumberBelow(j.at("rank"), size);
    f.group = j.at("group").get<std::string>();
    f.operation = CollectiveOf(j.at("operation"));
    f.purpose = j.at("purpose").get<std::string>();
    f.culprits = RanksOf(j.at("culprits"), size);
    f.reason = j.at("reason").get<std::string>();
    return f;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

CollectiveError ErrorOf(const Failure& failure, const std::string& group, int rank,
                        const Collective& operation, const std::string& purpose) {
  std::string what = StrCat("rank ", rank, ", group '", group, "', ", Describe(operation, purpose),
                            ": ", failure.reason);
  // By whom it is reported, unless the reason says so, and where it happened, unless it is here.
  const bool elsewhere = !failure.group.empty() && failure.group != group;
  const bool reported = failure.rank != rank && failure.culprits != std::vector<int>{failure.rank};
  std::string place;
  if ((failure.operation.sequence > 0 || !failure.purpose.empty()) &&
      (reported || elsewhere || failure.operation != operation)) {
    place = " in " + Describe(failure.operation, failure.purpose);
  }
  if (elsewhere) place += StrCat(place.empty() ? " in" : " of", " group '", failure.group, "'");
  if (reported) {
    what += StrCat(" (reported by rank ", failure.rank, place, ")");
  } else if (!place.empty()) {
    what += StrCat(" (", place.substr(1), ")");
  }
  return CollectiveError(what, failure.cause, rank, operation, failure.culprits);
}

}  // namespace lockstep::dist
