// Where CUDA graphs are captured.
#pragma once

#include "core/cuda/handles.h"

namespace lockstep::cuda {

// A stream of its own to capture on, and the memory that graphs captured here work in: what the
// caching allocator hands out meanwhile belongs to this stream, so that no other stream gets it,
// and it does not go back to the driver while this lives. Graphs may be launched on any stream,
// one at a time. Destroy them first.
class GraphSpace {
 public:
  // Whether graphs can be captured on the device: not without a caching allocator
  // (LOCKSTEP_CUDA_ALLOCATOR=none, sanitizers), since CUDA's own calls cannot allocate in a
  // capture.
  static bool Supported(Device device);

  // Throws ArgumentError where that is not so.
  explicit GraphSpace(Device device);
  ~GraphSpace();
  GraphSpace(const GraphSpace&) = delete;
  GraphSpace& operator=(const GraphSpace&) = delete;

  // Records what `work()` submits to the current stream of the device, instead of running it.
  // Tensors that it makes are of this space, and are overwritten by every launch: those that the
  // caller wants to read must stay alive.
  template <class F>
  Graph Capture(const F& work) {
    return Graph::Capture(stream_, work);
  }

 private:
  OwnedStream stream_;
};

}  // namespace lockstep::cuda
