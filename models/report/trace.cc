#include "models/report/trace.h"

#include <memory>

#include "core/autograd/engine.h"
#include "core/io/file.h"
#include "core/io/json.h"

namespace lockstep::models {
namespace {

double Microseconds(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

OrderedJson Metadata(const char* what, int thread, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", 1}, {"tid", thread}, {"args", {{"name", name}}}};
}

}  // namespace

TraceRecorder::TraceRecorder(std::string path, StepRange range, size_t max_events)
    : path_(std::move(path)), range_(range), max_events_(max_events) {}

int TraceRecorder::ThisThread() {
  const auto next = static_cast<int>(threads_.size() + tracks_.size()) + 1;
  return threads_.emplace(std::this_thread::get_id(), next).first->second;
}

int TraceRecorder::TrackNamed(const char* track) {
  const auto next = static_cast<int>(threads_.size() + tracks_.size()) + 1;
  const auto [known, is_new] = tracks_.emplace(track, next);
  if (is_new) thread_names_[next] = track;
  return known->second;
}

void TraceRecorder::NameThread(std::string name) {
  const std::lock_guard lock(mutex_);
  thread_names_[ThisThread()] = std::move(name);
}

void TraceRecorder::Record(std::string_view name, const char* category, Clock::time_point begin,
                           Clock::time_point end, const char* track) {
  if (!active_) return;
  const std::lock_guard lock(mutex_);
  if (events_.size() >= max_events_) {
    ++dropped_;
    return;
  }
  const auto ns = [](Clock::duration d) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
  };
  events_.push_back({std::string(name), category, ns(begin - origin_), ns(end - begin), step_,
                     track != nullptr ? TrackNamed(track) : ThisThread()});
}

std::string TraceRecorder::ToJson() const {
  const std::lock_guard lock(mutex_);
  OrderedJson events = OrderedJson::array();
  events.push_back(Metadata("process_name", 0, "lockstep"));
  const auto count = static_cast<int>(threads_.size() + tracks_.size());
  for (int thread = 1; thread <= count; ++thread) {
    const auto name = thread_names_.find(thread);
    events.push_back(
        Metadata("thread_name", thread,
                 name != thread_names_.end() ? name->second : "thread " + std::to_string(thread)));
  }
  for (const Event& e : events_) {
    events.push_back({{"name", e.name},
                      {"cat", e.category},
                      {"ph", "X"},
                      {"ts", Microseconds(e.begin_ns)},
                      {"dur", Microseconds(e.duration_ns)},
                      {"pid", 1},
                      {"tid", e.thread},
                      {"args", {{"step", e.step}}}});
  }
  OrderedJson all;
  all["displayTimeUnit"] = "ms";
  all["otherData"] = {{"steps", StrCat(range_.first, ":", range_.last)},
                      {"events", events_.size()},
                      {"dropped_events", dropped_}};
  all["traceEvents"] = std::move(events);
  return all.dump();
}

bool TraceRecorder::Finish() {
  active_ = false;
  if (finished_ || events_.empty()) return false;
  finished_ = true;
  WriteFileAtomically(path_, ToJson());
  return true;
}

void TraceForward(Module& model, TraceRecorder& trace) {
  for (const auto& [path, module] : model.NamedModules()) {
    if (path.empty() && module != &model) continue;  // a part of the model without a name
    // Forwards nest but never overlap, so that a module has one start at a time.
    auto begin = std::make_shared<TraceRecorder::Clock::time_point>();
    const std::string name = path.empty() ? "model" : path;
    module->AddPreForwardHook([&trace, begin](Module&) {
      if (trace.active()) *begin = TraceRecorder::Clock::now();
    });
    module->AddPostForwardHook([&trace, begin, name](Module&) {
      if (trace.active()) trace.Record(name, "forward", *begin, TraceRecorder::Clock::now());
    });
  }
}

void TraceBackward::OnBegin(const BackwardPlan& plan) {
  if (!trace_.active()) return;
  for (const std::shared_ptr<Node>& node : plan.nodes) {
    auto begin = std::make_shared<TraceRecorder::Clock::time_point>();
    auto range = std::make_shared<BackwardRange>();
    range->first_sequence = node->sequence();
    range->before = [begin] { *begin = TraceRecorder::Clock::now(); };
    range->after = [this, begin, name = node->name()] {
      trace_.Record(name, "backward", *begin, TraceRecorder::Clock::now());
    };
    node->AddRange(std::move(range));
  }
}

}  // namespace lockstep::models
