#include "dist/flight/flight_record.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/io/json.h"

namespace lockstep::dist {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using State = FlightCall::State;

constexpr int kVersion = 1;
constexpr State kStates[] = {State::kWaiting, State::kRunning, State::kDone};
constexpr CollectiveError::Cause kCauses[] = {
    CollectiveError::Cause::kMismatch, CollectiveError::Cause::kTimeout,
    CollectiveError::Cause::kLostRank, CollectiveError::Cause::kAborted,
    CollectiveError::Cause::kCorrupt};

std::string_view NameOf(CollectiveError::Cause cause) {
  switch (cause) {
    case CollectiveError::Cause::kMismatch:
      return "mismatch";
    case CollectiveError::Cause::kTimeout:
      return "timeout";
    case CollectiveError::Cause::kLostRank:
      return "lost rank";
    case CollectiveError::Cause::kAborted:
      return "gave up";
    case CollectiveError::Cause::kCorrupt:
      return "corrupt message";
  }
  return "unknown";
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
  return {{"cause", NameOf(f.cause)}, {"reported_by", f.rank}, {"culprits", f.culprits},
          {"reason", f.reason},       {"purpose", f.purpose},  {"operation", ToJson(f.operation)}};
}

int RankOf(const Json& j, int ranks) {
  try {
    return static_cast<int>(IntegerOf(j, 0, ranks - 1));
  } catch (const InputError&) {
    throw InputError(StrCat("it names rank ", DumpJson(j), " of ", ranks, " ranks"));
  }
}

int NumberOfRanksOf(const Json& j) {
  try {
    return static_cast<int>(IntegerOf(j, 1, std::numeric_limits<int>::max()));
  } catch (const InputError&) {
    throw InputError(StrCat("its number of ranks is ", DumpJson(j)));
  }
}

Failure FailureOf(const Json& j, int ranks) {
  Failure f;
  const auto cause = std::find_if(std::begin(kCauses), std::end(kCauses), [&](auto c) {
    return NameOf(c) == j.at("cause").get<std::string>();
  });
  if (cause == std::end(kCauses)) throw InputError("a failure has an unknown cause");
  f.cause = *cause;
  f.rank = RankOf(j.at("reported_by"), ranks);
  for (const Json& culprit : j.at("culprits")) f.culprits.push_back(RankOf(culprit, ranks));
  f.reason = j.at("reason").get<std::string>();
  f.purpose = j.at("purpose").get<std::string>();
  f.operation = CollectiveOf(j.at("operation"));
  return f;
}

FlightCall CallOf(const Json& j) {
  FlightCall c;
  c.call = CollectiveOf(j.at("operation"));
  c.purpose = j.at("purpose").get<std::string>();
  const auto state = std::find_if(std::begin(kStates), std::end(kStates), [&](State s) {
    return Name(s) == j.at("state").get<std::string>();
  });
  if (state == std::end(kStates)) throw InputError("a call has an unknown state");
  c.state = *state;
  c.submitted = j.at("submitted").get<double>();
  c.ended = j.at("ended").get<double>();
  return c;
}

}  // namespace

std::string_view Name(FlightCall::State state) {
  switch (state) {
    case State::kWaiting:
      return "waiting";
    case State::kRunning:
      return "running";
    case State::kDone:
      return "done";
  }
  return "unknown";
}

std::string ToJson(const FlightRecord& r) {
  OrderedJson groups = OrderedJson::object();
  for (const auto& [name, group] : r.groups) {
    OrderedJson calls = OrderedJson::array();
    for (const FlightCall& c : group.calls) {
      calls.push_back({{"operation", ToJson(c.call)},
                       {"purpose", c.purpose},
                       {"state", Name(c.state)},
                       {"submitted", c.submitted},
                       {"ended", c.ended}});
    }
    groups[name] = {{"failure", group.failure ? ToJson(*group.failure) : OrderedJson()},
                    {"calls", std::move(calls)}};
  }
  const OrderedJson j = {{"flight_record", kVersion}, {"rank", r.rank},
                         {"ranks", r.ranks},          {"host", r.host},
                         {"process", r.process},      {"meeting", r.meeting},
                         {"written", r.written},      {"error", r.error},
                         {"groups", groups}};
  return DumpJson(j, 1) + "\n";
}

FlightRecord ParseFlightRecord(const std::string& text, const std::string& file) {
  try {
    const Json j = ParseJson(text, "its text");
    if (j.at("flight_record") != kVersion) throw InputError("it has another version");
    FlightRecord r;
    r.ranks = NumberOfRanksOf(j.at("ranks"));
    r.rank = RankOf(j.at("rank"), r.ranks);
    r.host = j.at("host").get<std::string>();
    r.process = IntegerOf(j.at("process"));
    r.meeting = j.at("meeting").get<std::string>();
    r.written = j.at("written").get<double>();
    r.error = j.at("error").get<std::string>();
    for (const auto& [name, group] : j.at("groups").items()) {
      FlightGroup& g = r.groups[name];
      if (!group.at("failure").is_null()) g.failure = FailureOf(group.at("failure"), r.ranks);
      for (const Json& call : group.at("calls")) g.calls.push_back(CallOf(call));
    }
    return r;
  } catch (const Json::exception&) {
    throw InputError(StrCat(file, " is not a flight record of this version: a field is missing ",
                            "or has the wrong type"));
  } catch (const std::exception& e) {
    throw InputError(StrCat(file, " is not a flight record of this version: ", e.what()));
  }
}

std::string FlightFileName(int rank) { return StrCat("rank-", rank, ".json"); }

}  // namespace lockstep::dist
