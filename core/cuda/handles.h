// Owners of CUDA objects. lockstep::Event (core/stream.h) owns events.
#pragma once

#include <utility>

#include "core/stream.h"

namespace lockstep::cuda {

// A stream of its own: work on it is ordered with that on other streams by events alone. Destroying
// it waits for what was submitted, and throws nothing where the device has failed; the stream
// itself lives as long as somebody holds a copy (Stream).
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

// Work that was captured once and is submitted as a whole. Kernels read and write the memory they
// were captured with: keep those tensors, and let the allocator not hand it to others meanwhile.
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
  // Whether some thread captures on the device: until it ends, nothing may wait for the device.
  static bool CapturesOn(Device device);

 private:
  // Ends the capture, however it is left.
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
