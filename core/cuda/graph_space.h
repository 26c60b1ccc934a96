// Where CUDA graphs are captured.
#pragma once

#include <string>

#include "core/cuda/handles.h"

namespace lockstep::cuda {

// A stream to capture CUDA graphs on, and the memory that they use: what the caching allocator
// hands out during a capture belongs to this stream, so no other stream gets it, and it does not go
// back to the driver during this object's lifetime. Graphs may be launched on any stream, one at a
// time. Destroy them before this object.
class GraphSpace {
 public:
  // Why graphs cannot be captured on the device; "" if they can. They need a caching allocator
  // (which LOCKSTEP_CUDA_ALLOCATOR=none and sanitizers leave out), since CUDA's own calls cannot
  // allocate in a capture, and kernels that nobody waits for (LOCKSTEP_CUDA_SYNC=1).
  static std::string WhyNot(Device device);
  static bool Supported(Device device) { return WhyNot(device).empty(); }

  // Throws ArgumentError if the device is not Supported.
  explicit GraphSpace(Device device);
  ~GraphSpace();
  GraphSpace(const GraphSpace&) = delete;
  GraphSpace& operator=(const GraphSpace&) = delete;

  // Records what `work()` submits to the current stream of the device, instead of running it.
  // Tensors that it creates use this space's memory, and every launch overwrites them: keep those
  // alive that you want to read.
  template <class F>
  Graph Capture(const F& work) {
    return Graph::Capture(stream_, work);
  }

 private:
  OwnedStream stream_;
};

}  // namespace lockstep::cuda
