#include "dist/flight/flight_record.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/io/json.h"

namespace lockstep::dist {
namespace {

constexpr int kVersion = 1;
// By FlightCall::State.
constexpr std::array<std::string_view, 3> kStates = {"waiting", "running", "done"};
static_assert(static_cast<size_t>(FlightCall::State::kDone) + 1 == kStates.size() &&
              kStates.back() == "done");

int NumberOfRanksOf(const Json& j) {
  try {
    return static_cast<int>(IntegerOf(j, 1, std::numeric_limits<int>::max()));
  } catch (const InputError&) {
    throw InputError(StrCat("its number of ranks is ", j.dump()));
  }
}

FlightCall CallOf(const Json& j) {
  FlightCall c;
  c.call = CollectiveOf(j.at("operation"));
  c.purpose = j.at("purpose").get<std::string>();
  const auto state = std::ranges::find(kStates, j.at("state").get<std::string>());
  if (state == kStates.end()) throw InputError("a call has an unknown state");
  c.state = static_cast<FlightCall::State>(state - kStates.begin());
  c.submitted = j.at("submitted").get<double>();
  c.ended = j.at("ended").get<double>();
  return c;
}

}  // namespace

std::string_view Name(FlightCall::State state) { return kStates[static_cast<size_t>(state)]; }

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
  return j.dump(1) + "\n";
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
      if (Json failure = group.at("failure"); !failure.is_null()) {
        failure.emplace("group", "");  // older records lack it
        g.failure = FailureOf(failure, r.ranks);
      }
      for (const Json& call : group.at("calls")) g.calls.push_back(CallOf(call));
    }
    return r;
  } catch (const JsonError&) {
    throw InputError(StrCat(file, " is not a flight record of this version: a field is missing ",
                            "or has the wrong type"));
  } catch (const std::exception& e) {
    throw InputError(StrCat(file, " is not a flight record of this version: ", e.what()));
  }
}

std::string FlightFileName(int rank) { return StrCat("rank-", rank, ".json"); }

}  // namespace lockstep::dist
