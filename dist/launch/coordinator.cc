#include "dist/launch/coordinator.h"

#include <set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/io/json.h"
#include "dist/launch/member_messages.h"

namespace lockstep::dist {
namespace {

constexpr int kSlots = 1 << 12;  // of a machine

int MemberOf(int node, int slot) { return node * kSlots + slot; }

}  // namespace

std::string ToText(const ProcessReport& r) {
  Json j = {{"kind", static_cast<int>(r.kind)}, {"slot", r.slot}, {"text", r.text}};
  if (r.kind == ProcessReport::Kind::kReady) j["line"] = ToLine(r.ready);
  return j.dump();
}

std::string ToText(const ProcessOrder& o) {
  return Json{{"kind", static_cast<int>(o.kind)}, {"slot", o.slot}, {"text", o.text}}.dump();
}

ProcessReport ReportOf(const std::string& text) {
  using enum ProcessReport::Kind;
  const auto j = TryParseJson(text);
  ProcessReport r;
  r.kind = static_cast<ProcessReport::Kind>(
      IntegerOf(j.at("kind"), static_cast<int>(kStarted), static_cast<int>(kOver)));
  r.slot = static_cast<int>(IntegerOf(j.at("slot"), 0, kSlots - 1));
  r.text = j.at("text").get<std::string>();
  if (r.kind == kReady) {
    r.ready = ReadyOf(TryParseJson(j.at("line").get<std::string>()).at("ready"));
  }
  return r;
}

ProcessOrder OrderOf(const std::string& text) {
  using enum ProcessOrder::Kind;
  const auto j = TryParseJson(text);
  return {.kind = static_cast<ProcessOrder::Kind>(
              IntegerOf(j.at("kind"), static_cast<int>(kTell), static_cast<int>(kOver))),
          .slot = static_cast<int>(IntegerOf(j.at("slot"), 0, kSlots - 1)),
          .text = j.at("text").get<std::string>()};
}

void Coordinator::Hear(int node, const ProcessReport& report) {
  const int member = MemberOf(node, report.slot);
  switch (report.kind) {
    case ProcessReport::Kind::kStarted:
      nodes_[member] = node;
      members_.Start(member, node, report.text);
      break;
    case ProcessReport::Kind::kReady:
      members_.BeReady(member, report.ready);
      leave_time_ = std::chrono::milliseconds(report.ready.leave_ms);
      if (over_) Tell(member, refused_ ? ToLine("refused", why_) : ToLine("over", ""));
      if (!waiting_since_) waiting_since_ = Clock::now();
      break;
    case ProcessReport::Kind::kStopping:
      members_.AcceptAny();
      stopping_ = true;
      break;
    case ProcessReport::Kind::kOver:
      over_ = true;
      End(member, report.text);
      break;
    case ProcessReport::Kind::kEnded:
      End(member, report.text);
      break;
  }
}

void Coordinator::Lose(int node, const std::string& how) {
  std::vector<int> lost;
  for (const auto& [member, of_node] : nodes_) {
    if (of_node == node) lost.push_back(member);
  }
  for (const int member : lost) End(member, how);
}

void Coordinator::End(int member, const std::string& how) {
  nodes_.erase(member);
  if (members_.End(member, how)) TellAll(ToLine("broken", ""));
}

void Coordinator::Tell(int member, const std::string& line) {
  order_(member / kSlots,
         {.kind = ProcessOrder::Kind::kTell, .slot = member % kSlots, .text = line});
}

void Coordinator::TellAll(const std::string& line) {
  for (const auto& [member, node] : nodes_) Tell(member, line);
}

void Coordinator::Refuse(const std::string& reason) {
  if (over_) return;
  over_ = refused_ = true;
  why_ = reason;
  TellAll(ToLine("refused", reason));
}

void Coordinator::Decide() {
  if (!members_.is_being_left()) {
    left_since_.reset();
  } else if (!left_since_) {
    left_since_ = Clock::now();
  } else if (leave_time_.count() > 0 && Clock::now() - *left_since_ > leave_time_) {
    members_.CondemnRemaining();
  }
  for (const int member : members_.Condemn()) {
    order_(member / kSlots, {.kind = ProcessOrder::Kind::kKill, .slot = member % kSlots});
  }
  if (over_) {
    if (std::exchange(told_, true)) return;
    TellAll(ToLine("over", ""));
    std::set<int> nodes;
    for (const auto& [member, node] : nodes_) nodes.insert(node);
    for (const int node : nodes) order_(node, {.kind = ProcessOrder::Kind::kOver, .text = why_});
    return;
  }
  const bool patient = !waiting_since_ || Clock::now() - *waiting_since_ < kPatience;
  const auto places = members_.Form(patient);
  for (const auto& [member, place] : places) Tell(member, ToLine(place));
  if (!places.empty()) waiting_since_.reset();
  if (stopping_ && places.empty() && members_.all_wait()) {
    Refuse("too few ranks are left to save: the same command goes on from the newest checkpoint");
  }
  for (const int member : members_.Summon()) Tell(member, ToLine("summoned", ""));
}

}  // namespace lockstep::dist
