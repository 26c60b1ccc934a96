// Where CUDA graphs are captured.
#pragma once

#include "core/cuda/handles.h"

namespace lockstep::cuda {

// A stream to capture CUDA graphs on, and the memory that they use: what the caching allocator
// hands out during a capture belongs to this stream, so no other stream gets it, and it does not go
// back to the driver during this object's lifetime. Graphs may be launched on any stream, one at a
// time. Destroy them before this object.
class GraphSpace {
 public:
  // Whether graphs can be captured on the device: not without a caching allocator
  // (LOCKSTEP_CUDA_ALLOCATOR=none, sanitizers), since CUDA's own calls cannot allocate in a
  // capture.
  static bool Supported(Device device);

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
