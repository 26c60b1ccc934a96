// ControlPlane: the calls in which ranks wait for each other. See control_plane.h.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "core/io/json.h"
#include "dist/control/control_plane.h"

namespace lockstep::dist {
namespace {
using Milliseconds = ControlPlane::Milliseconds;

// After which a rank says that it waits, if all that it waits for wait themselves; and otherwise,
// since they may be busy.
constexpr Milliseconds kPatience = std::chrono::seconds(10), kPatienceWithBusy = 3 * kPatience;
// Of shorter waits nothing is to be said: the calls are in progress.
constexpr Milliseconds kLeast = std::chrono::seconds(1);
constexpr size_t kMostCalls = 4;
constexpr auto kTimeToAnswer = std::chrono::seconds(2);

uint64_t WaitsTopic() {
  static const uint64_t topic = TopicOf("waits");
  return topic;
}

Milliseconds Since(AwakeClock::time_point begin) {
  return std::chrono::duration_cast<Milliseconds>(AwakeClock::now() - begin);
}

}  // namespace

std::string Describe(const Answers<RankWaits>& waits) {
  std::map<std::string, std::vector<int>> ranks;
  for (const auto& [rank, of_rank] : waits.by_rank) {
    if (of_rank.calls.empty()) continue;
    const auto& [group, call] = of_rank.calls.front();
    ranks[StrCat(call, ", group '", group, "'")].push_back(rank);
  }
  if (ranks.size() < 2) return "";
  std::string text;
  size_t told = 0;
  for (const auto& [call, who] : ranks) {
    if (told++ == kMostCalls) break;
    text += StrCat("; ", ListRanks(who, "waits", "wait"), " in ", call);
  }
  return text +
         ". Is a call that all ranks must make inside an `if` on the rank, such as `if "
         "(parallel.is_main())`, or has a rank more batches than another? All ranks must make the "
         "same calls, equally often";
}

void ControlPlane::AnswerWaits() {
  // Ranks that wait in the same calls answer alike, so that few answers travel.
  responders_[WaitsTopic()] = [this](const std::string& question) {
    const size_t space = question.find(' ');
    const Milliseconds least(std::atoll(question.c_str()));
    const std::string group = question.substr(space + 1);
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::pair<Milliseconds, Json>> calls;
    for (const auto& [of, wait] : waits_) {
      if (!wait.since || Since(*wait.since) < least) continue;
      calls.emplace_back(Since(*wait.since), Json{of, Describe(wait.call, wait.purpose)});
    }
    std::ranges::sort(calls, std::greater(), [](const auto& call) { return call.first; });
    const auto it = waits_.find(group);
    Json answer{{"reached", it == waits_.end() ? 0 : it->second.reached}, {"calls", Json::array()}};
    for (size_t i = 0; i < std::min(kMostCalls, calls.size()); ++i) {
      answer["calls"].push_back(calls[i].second);
    }
    return answer.dump();
  };
}

void ControlPlane::BeginWait(const std::string& group, const Collective& call,
                             const std::string& purpose) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Wait& wait = waits_[group];
  // Exchanges have numbers of their own.
  if (call.kind != CollectiveKind::kExchange) wait.reached = call.sequence;
  wait.call = call;
  wait.purpose = purpose;
  wait.since = wait.look_at = AwakeClock::now();
  wait.told = false;
}

void ControlPlane::EndWait(const std::string& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const auto it = waits_.find(group); it != waits_.end()) it->second.since.reset();
}

void ControlPlane::ForgetWaits(const std::string& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waits_.erase(group);
}

Answers<RankWaits> ControlPlane::Waits(const std::string& group, Milliseconds least) {
  const auto answers = Ask(AllRanks(size()), WaitsTopic(), StrCat(least.count(), " ", group),
                           Clock::now() + kTimeToAnswer);
  return Parsed<RankWaits>(answers, [](const std::string& text) {
    const Json j = TryParseJson(text);
    RankWaits of_rank{.reached = j.at("reached").get<int64_t>()};
    for (const Json& call : j.at("calls")) {
      of_rank.calls.emplace_back(call.at(0).get<std::string>(), call.at(1).get<std::string>());
    }
    return of_rank;
  });
}

void ControlPlane::LookAtWait(const std::string& group, const std::vector<int>& members,
                              Milliseconds timeout) {
  const Milliseconds patience = std::min(kPatience, timeout / 2);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = waits_.find(group);
    if (failure_ || it == waits_.end() || !it->second.since) return;
    if (it->second.call.kind == CollectiveKind::kExchange) return;
    if (Since(it->second.look_at) < patience) return;
    it->second.look_at = AwakeClock::now();
  }
  if (pause(TopicOf(group))) return;  // of which the user is told
  PostBlocking([this, group, members, timeout, here = std::this_thread::get_id()] {
    // Without a thread of its own this would wait for the loop, on which answers arrive.
    if (std::this_thread::get_id() != here) TellWait(group, members, timeout);
  });
}

// Of the ranks that wait in a call, the first one tells it, once.
void ControlPlane::TellWait(const std::string& group, const std::vector<int>& members,
                            Milliseconds timeout) {
  const Answers<RankWaits> waits = Waits(group, kLeast);
  std::vector<int> awaited, here;
  std::string text;
  bool any_busy = !waits.silent.empty();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = waits_.find(group);
    if (failure_ || it == waits_.end() || !it->second.since || it->second.told) return;
    Wait& wait = it->second;
    for (const auto& [rank, of_rank] : waits.by_rank) {
      any_busy |= of_rank.calls.empty();
      if (IndexOf(members, rank) < 0) continue;
      const bool waits_here =
          std::ranges::any_of(of_rank.calls, [&](const auto& c) { return c.first == group; });
      if (of_rank.reached < wait.reached)
        awaited.push_back(rank);
      else if (waits_here)
        here.push_back(rank);
    }
    if (awaited.empty() || here.empty() || here.front() != rank()) return;
    const Milliseconds waited = Since(*wait.since);
    if (any_busy && (told_of_busy_ || waited < kPatienceWithBusy)) return;
    told_of_busy_ |= any_busy;
    wait.told = true;
    text = StrCat(ListRanks(here, "has", "have"), " waited for ", waited.count() / 1000, " s in ",
                  Describe(wait.call, wait.purpose), ", group '", group, "', for ",
                  ListRanks(awaited));
  }
  if (any_busy) {
    text +=
        ", which may be busy: put a dist::Pause around what a rank does by itself, and see that "
        "all ranks make this call";
  } else {
    text += Describe(waits);
  }
  std::fprintf(stderr, "%s (dist.timeout: %lld s)\n", text.c_str(),
               static_cast<long long>(timeout.count() / 1000));
}

}  // namespace lockstep::dist
