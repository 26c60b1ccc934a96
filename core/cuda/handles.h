// Owners of CUDA objects. lockstep::Event (core/stream.h) owns events.
#pragma once

#include <utility>

#include "core/stream.h"

namespace lockstep::cuda {

// A new stream: only events order its work with that of other streams. The destructor waits for the
// submitted work, and does not throw if the device has failed; the stream itself lives as long as
// any copy of it (Stream).
class OwnedStream {
 public:
  explicit OwnedStream(Device device);
  ~OwnedStream();
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  operator const Stream&() const { return stream_; }
  const Stream& get() const { return stream_; }

 private:
  Stream stream_;
};

// Whether the host waits for each kernel, so that errors name the one at fault
// (LOCKSTEP_CUDA_SYNC=1). Graphs cannot be captured then.
bool SynchronousLaunches();

// Work that was captured once and is submitted as a whole. Kernels read and write the memory they
// were captured with: keep those tensors alive, and keep the allocator from handing that memory to
// others.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(exec_, other.exec_);
    return *this;
  }

  // Records what `work()` submits to `stream` (not the default one), instead of running it. Throws
  // what work throws.
  template <class F>
  static Graph Capture(Stream stream, const F& work) {
    Capturing capturing(stream);
    {
      const StreamGuard guard(stream);
      work();
    }
    return capturing.End();
  }

  bool defined() const { return exec_ != nullptr; }
  void Launch(Stream stream) const;
  // Whether some thread is capturing on the device: until it is done, nothing may wait for the
  // device.
  static bool CapturesOn(Device device);

 private:
  // Ends the capture, however its scope is left.
  class Capturing {
   public:
    explicit Capturing(Stream stream);
    ~Capturing();
    Graph End();

   private:
    Stream stream_;
    bool active_ = true;
  };

  void* exec_ = nullptr;  // cudaGraphExec_t
};

}  // namespace lockstep::cuda
