// Graphs, and streams that record their work into one.
#ifndef CUDASIM_RUNTIME_CAPTURE_H_
#define CUDASIM_RUNTIME_CAPTURE_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "state.h"

struct CUgraphNode_st {
  size_t index = 0;
  cudasim::runtime::Work work;
  std::vector<CUgraphNode_st*> after;
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;  // In topological order.
};

namespace cudasim::runtime {

// A capture in progress. All functions need the lock.
struct Capture {
  uint64_t id = 0;
  CUgraph_st* graph = nullptr;
  CUstream_st* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false;

  // Adds work of a captured stream as a node.
  static cudaError_t Add(Lock& lock, CUstream_st* stream, Work work);
  // The legacy default stream must not be used while a stream that would wait for it is captured.
  static cudaError_t CheckLegacy(const Lock& lock, const CUstream_st* stream);
  // cudaEventRecord and cudaStreamWaitEvent if the stream or the event is part of a capture.
  static cudaError_t Record(const Lock& lock, CUstream_st* stream, CUevent_st* event);
  static cudaError_t Wait(const Lock& lock, CUstream_st* stream, const CUevent_st* event);
  // For calls that a capture does not survive: invalidates the capture of `stream`.
  static cudaError_t Refuse(CUstream_st* stream);
};

// Makes a captured graph known to the cudaGraph functions.
void Adopt(const Lock&, CUgraph_st* graph);

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_CAPTURE_H_
