// Graphs, and streams that record their work into one.
#ifndef CUDASIM_RUNTIME_CAPTURE_H_
#define CUDASIM_RUNTIME_CAPTURE_H_

#include <cstdint>
#include <functional>
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
  size_t first = 0;  // node of this capture; those before it were in the graph already
  bool owns_graph = true;
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
// Whether they know it.
bool IsGraph(const Lock&, CUgraph_st* graph);

// What a call enqueues in the stream that it is given becomes a node of the graph, after `after`.
using Enqueuing = std::function<cudaError_t(cudaStream_t stream)>;
cudaError_t AddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                    size_t count, const Enqueuing& call);
// The same in place of what a node does, in its graph or in an instantiated one.
cudaError_t SetNode(cudaGraphNode_t node, const Enqueuing& call);
cudaError_t SetNode(cudaGraphExec_t exec, cudaGraphNode_t node, const Enqueuing& call);
cudaError_t SetNode(cudaGraphExec_t exec, cudaGraphNode_t node, Work work);

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_CAPTURE_H_
