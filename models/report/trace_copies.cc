#include "models/report/trace_copies.h"

#include <utility>

#include "core/error.h"
#include "models/report/format.h"

namespace lockstep::models {
namespace {

constexpr std::array<const char*, 3> kTracks = {"copies to the GPU", "copies to the host", "GPU"};

}  // namespace

TraceCopies::TraceCopies(TraceRecorder& trace) : trace_(trace) {
  for (Queue& queue : queues_) queue.thread = std::thread([this, &queue] { Watch(queue); });
}

TraceCopies::~TraceCopies() {
  for (Queue& queue : queues_) {
    {
      const std::lock_guard lock(queue.mutex);
      queue.ends = true;
    }
    queue.changed.notify_one();
  }
  for (Queue& queue : queues_) queue.thread.join();
}

void TraceCopies::OnSpan(Span span) {
  Queue& queue = queues_[static_cast<size_t>(span.track)];
  {
    const std::lock_guard lock(queue.mutex);
    queue.spans.push_back(std::move(span));
  }
  queue.changed.notify_one();
}

void TraceCopies::Watch(Queue& queue) {
  while (true) {
    std::unique_lock lock(queue.mutex);
    queue.changed.wait(lock, [&] { return queue.ends || !queue.spans.empty(); });
    if (queue.spans.empty()) return;
    const Span span = std::move(queue.spans.front());
    queue.spans.pop_front();
    lock.unlock();
    try {
      span.begin->Synchronize();
      const auto begin = TraceRecorder::Clock::now();
      span.end->Synchronize();
      const bool copy = span.track != Track::kCompute;
      trace_.Record(
          copy ? StrCat(span.name, ", ", FormatBytes(static_cast<double>(span.bytes))) : span.name,
          copy ? "copy" : "compute", begin, TraceRecorder::Clock::now(),
          kTracks[static_cast<size_t>(span.track)]);
    } catch (const Error&) {
      // The GPU has failed, and the run's next use of it says so.
    }
  }
}

}  // namespace lockstep::models
