#include "dist/control/failure.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/io/json.h"

namespace lockstep::dist {
namespace {

// By CollectiveError::Cause.
constexpr std::array<std::string_view, 5> kCauses = {"mismatch", "timeout", "lost rank", "gave up",
                                                     "corrupt message"};
static_assert(static_cast<size_t>(CollectiveError::Cause::kCorrupt) + 1 == kCauses.size() &&
              kCauses.back() == "corrupt message");

}  // namespace

Failure FailureOf(CollectiveError::Cause cause, int rank, std::string reason) {
  return {.cause = cause, .rank = rank, .culprits = {rank}, .reason = std::move(reason)};
}

Failure GivenUp(int rank, const std::string& reason) {
  return FailureOf(CollectiveError::Cause::kAborted, rank,
                   StrCat("rank ", rank, " gave up: ", reason));
}

// The text is for people; only the values are read back.
OrderedJson ToJson(const Collective& c) {
  return {{"text", c.sequence == 0 ? "no call" : Describe(c)}, {"values", ToValues(c)}};
}

Collective CollectiveOf(const Json& j) {
  const auto call = CollectiveFromValues(IntegersOf(j.at("values")));
  if (!call) throw InputError("an operation is invalid");
  return *call;
}

OrderedJson ToJson(const Failure& f) {
  return {{"cause", kCauses[static_cast<size_t>(f.cause)]},
          {"reported_by", f.rank},
          {"culprits", f.culprits},
          {"reason", f.reason},
          {"group", f.group},
          {"purpose", f.purpose},
          {"operation", ToJson(f.operation)}};
}

int RankOf(const Json& j, int ranks) {
  try {
    return static_cast<int>(IntegerOf(j, 0, ranks - 1));
  } catch (const InputError&) {
    throw InputError(StrCat("it names rank ", j.dump(), " of ", ranks, " ranks"));
  }
}

Failure FailureOf(const Json& j, int ranks) {
  const auto cause = std::ranges::find(kCauses, j.at("cause").get<std::string>());
  if (cause == kCauses.end()) throw InputError("a failure has an unknown cause");
  Failure f{.cause = static_cast<CollectiveError::Cause>(cause - kCauses.begin()),
            .rank = RankOf(j.at("reported_by"), ranks),
            .group = j.at("group").get<std::string>(),
            .operation = CollectiveOf(j.at("operation")),
            .purpose = j.at("purpose").get<std::string>(),
            .reason = j.at("reason").get<std::string>()};
  if (!j.at("culprits").is_array()) throw InputError("the culprits of a failure are not a list");
  for (const Json& culprit : j.at("culprits")) f.culprits.push_back(RankOf(culprit, ranks));
  return f;
}

std::string ToText(const Failure& f) { return ToJson(f).dump(); }

std::optional<Failure> ParseFailure(const std::string& text, int ranks) {
  try {
    return FailureOf(TryParseJson(text), ranks);
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
