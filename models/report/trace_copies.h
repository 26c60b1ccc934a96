// Copies between a GPU and the host in a trace, next to the GPU's computation.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "core/offload/host_copies.h"
#include "models/report/trace.h"

namespace lockstep::models {

// While one exists, the copies of its thread (core/offload/host_copies.h) are spans of the tracks
// "copies to the GPU" and "copies to the host", and the forward, backward and update of what was
// copied are spans of "GPU", all with the time at which the GPU did them: where two overlap, a copy
// costs nothing. A thread for each track waits for the GPU's events.
class TraceCopies : public CopyListener {
 public:
  explicit TraceCopies(TraceRecorder& trace);
  ~TraceCopies() override;  // waits for the spans

  void OnSpan(Span span) override;

 private:
  // The spans of a track, in the order in which the GPU gets to them.
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Span> spans;
    bool ends = false;
    std::thread thread;
  };
  void Watch(Queue& queue);

  TraceRecorder& trace_;
  std::array<Queue, 3> queues_;  // by Track
};

}  // namespace lockstep::models
