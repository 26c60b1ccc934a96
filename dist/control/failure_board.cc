#include "dist/control/failure_board.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/io/json.h"

namespace lockstep::dist {
namespace {

using nlohmann::json;

constexpr char kWhere[] = "where", kLost[] = "lost";
constexpr std::string_view kCalls = "calls at ";
constexpr auto kPatience = std::chrono::seconds(2);
constexpr FailureBoard::Milliseconds kLongestBeat(500);

std::optional<Collective> ParseCall(const json& j) {
  try {
    return CollectiveFromValues(IntegersOf(j));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// nullopt for text that no rank writes.
std::optional<CallPosition> ParsePosition(const std::string& text) {
  const json j = TryParseJson(text);
  try {
    const auto call = ParseCall(j.at(0));
    if (!call) return std::nullopt;
    return CallPosition{*call, IntegerOf(j.at(1)), j.at(2).get<bool>()};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// Peer, direction, number, and so on.
std::vector<int64_t> ToValues(const TransferCounts& counts) {
  std::vector<int64_t> values;
  for (const auto& [end, number] : counts) {
    values.insert(values.end(), {end.first, end.second ? 1 : 0, number});
  }
  return values;
}

TransferCounts ParseTransfers(const json& j) {
  TransferCounts counts;
  try {
    const std::vector<int64_t> values = IntegersOf(j);
    for (size_t i = 0; i + 2 < values.size(); i += 3) {
      counts[{static_cast<int>(values[i]), values[i + 1] != 0}] = values[i + 2];
    }
  } catch (const InputError&) {
  }
  return counts;
}

std::optional<std::vector<int>> ParseRanks(const std::string& text, int size) {
  std::vector<int> ranks;
  try {
    for (const int64_t rank : IntegersOf(TryParseJson(text))) {
      if (rank < 0 || rank >= size) return std::nullopt;
      ranks.push_back(static_cast<int>(rank));
    }
  } catch (const InputError&) {
    return std::nullopt;
  }
  return ranks;
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
    return DumpJson(json{ToValues(p.call), p.step, p.busy});
  }
  if (question.starts_with(kCalls) && options_.log) {
    const CallLog mine = options_.log();
    const int64_t last = mine.log.last();
    json calls = json::array();
    for (const int64_t sequence : {int64_t{std::atoll(question.c_str() + kCalls.size())}, last}) {
      const auto call = mine.log.At(sequence);
      calls.push_back(call ? json(ToValues(*call)) : json());
    }
    calls.push_back(ToValues(mine.transfers));
    calls.push_back(mine.waits_in);
    return DumpJson(calls);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return question == kLost && lost_ ? DumpJson(json(*lost_)) : "";
}

Answers<std::string> FailureBoard::Ask(const std::string& question) {
  return plane_->Ask(options_.members, topic_, question, ControlPlane::Clock::now() + kPatience);
}

Failure FailureBoard::Post(Failure failure) {
  failure.group = options_.group;
  return plane_->Fail(failure);
}

Answers<CallPosition> FailureBoard::Positions() {
  const auto answers = Ask(kWhere);
  Answers<CallPosition> positions{.by_rank = {}, .silent = answers.silent};
  for (const auto& [rank, text] : answers.by_rank) {
    const auto position = text.empty() ? CallPosition() : ParsePosition(text);
    if (position) positions.by_rank[rank] = *position;
  }
  return positions;
}

Answers<FailureBoard::Calls> FailureBoard::CallsAt(int64_t sequence) {
  const auto answers = Ask(StrCat(kCalls, sequence));
  Answers<Calls> calls{.by_rank = {}, .silent = answers.silent};
  for (const auto& [rank, text] : answers.by_rank) {
    const json j = TryParseJson(text);
    if (text.empty()) {
      calls.by_rank[rank] = {};
    } else if (j.is_array() && j.size() == 4 && j[3].is_string()) {
      calls.by_rank[rank] = {true, ParseCall(j[0]), ParseCall(j[1]).value_or(Collective()),
                             ParseTransfers(j[2]), j[3].get<std::string>()};
    }
  }
  return calls;
}

void FailureBoard::ShareLost(const std::vector<int>& lost) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lost_ = lost;
}

Answers<std::vector<int>> FailureBoard::Lost() {
  const auto answers = Ask(kLost);
  Answers<std::vector<int>> all{.by_rank = {}, .silent = answers.silent};
  for (const auto& [rank, text] : answers.by_rank) {
    if (const auto ranks = ParseRanks(text, plane_->size())) all.by_rank[rank] = *ranks;
  }
  return all;
}

}  // namespace lockstep::dist
