#include "dist/control/failure_board.h"

#include <algorithm>
#include <utility>

#include "core/io/json.h"

namespace lockstep::dist {
namespace {

constexpr char kWhere[] = "where", kLost[] = "lost";
constexpr std::string_view kCalls = "calls at ";
constexpr auto kPatience = std::chrono::seconds(2);
constexpr FailureBoard::Milliseconds kLongestBeat(500);

// These throw for what no rank writes.
Collective CallOf(const Json& j) { return CollectiveFromValues(IntegersOf(j)).value(); }

// Peer, direction, number, and so on.
std::vector<int64_t> ToValues(const TransferCounts& counts) {
  std::vector<int64_t> values;
  for (const auto& [end, number] : counts) {
    values.insert(values.end(), {end.first, end.second ? 1 : 0, number});
  }
  return values;
}

TransferCounts TransfersOf(const Json& j) {
  TransferCounts counts;
  const std::vector<int64_t> values = IntegersOf(j);
  for (size_t i = 0; i + 2 < values.size(); i += 3) {
    counts[{static_cast<int>(values[i]), values[i + 1] != 0}] = values[i + 2];
  }
  return counts;
}

}  // namespace

FailureBoard::FailureBoard(std::shared_ptr<ControlPlane> plane, Options options)
    : plane_(std::move(plane)),
      options_(std::move(options)),
      topic_(TopicOf(options_.group + "/board")) {
  LS_CHECK(plane_->Answer(topic_, [this](const std::string& q) { return Respond(q); }),
           "there is a group '", options_.group, "' already: give each group a name of its own");
  listener_ = plane_->AddListener(options_.on_failure);
  if (!options_.on_beat) return;
  const auto beat = std::clamp(options_.timeout / 8, Milliseconds(1), kLongestBeat);
  ticker_ = plane_->Every(beat, options_.on_beat);
}

FailureBoard::~FailureBoard() {
  plane_->Unsubscribe(topic_);
  plane_->RemoveListener(listener_);
  plane_->RemoveListener(ticker_);
}

std::string FailureBoard::Respond(const std::string& question) {
  if (question == kWhere && options_.position) {
    const CallPosition p = options_.position();
    return Json{ToValues(p.call), p.step, p.busy}.dump();
  }
  if (question.starts_with(kCalls) && options_.log) {
    const CallLog mine = options_.log();
    const int64_t last = mine.log.last();
    Json calls = Json::array();
    for (const int64_t sequence : {int64_t{std::atoll(question.c_str() + kCalls.size())}, last}) {
      const auto call = mine.log.At(sequence);
      calls.push_back(call ? Json(ToValues(*call)) : Json());
    }
    calls.push_back(ToValues(mine.transfers));
    calls.push_back(mine.waits_in);
    return calls.dump();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return question == kLost && lost_ ? Json(*lost_).dump() : "";
}

Answers<std::string> FailureBoard::Ask(const std::string& question) {
  return plane_->Ask(options_.members, topic_, question, ControlPlane::Clock::now() + kPatience);
}

Failure FailureBoard::Post(Failure failure) {
  failure.group = options_.group;
  return plane_->Fail(failure);
}

Answers<CallPosition> FailureBoard::Positions() {
  return Parsed<CallPosition>(Ask(kWhere), [](const std::string& text) {
    if (text.empty()) return CallPosition();
    const Json j = TryParseJson(text);
    return CallPosition{CallOf(j.at(0)), IntegerOf(j.at(1)), j.at(2).get<bool>()};
  });
}

Answers<FailureBoard::Calls> FailureBoard::CallsAt(int64_t sequence) {
  return Parsed<Calls>(Ask(StrCat(kCalls, sequence)), [](const std::string& text) {
    if (text.empty()) return Calls();
    const Json j = TryParseJson(text);
    Calls calls{.has_group = true,
                .transfers = TransfersOf(j.at(2)),
                .waits_in = j.at(3).get<std::string>()};
    if (!j.at(0).is_null()) calls.at = CallOf(j.at(0));
    if (!j.at(1).is_null()) calls.last = CallOf(j.at(1));
    return calls;
  });
}

void FailureBoard::ShareLost(const std::vector<int>& lost) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lost_ = lost;
}

Answers<std::vector<int>> FailureBoard::Lost() {
  return Parsed<std::vector<int>>(Ask(kLost), [this](const std::string& text) {
    const Json j = TryParseJson(text);
    if (!j.is_array()) throw InputError("this rank has shared no list");
    std::vector<int> ranks;
    for (const Json& rank : j) ranks.push_back(RankOf(rank, plane_->size()));
    return ranks;
  });
}

}  // namespace lockstep::dist
