// Stream capture: work becomes nodes of a graph instead of being run.
#include "capture.h"

#include <algorithm>
#include <set>
#include <utility>

namespace cudasim::runtime {
namespace {

// The streams that belong to a capture.
std::vector<CUstream_st*> StreamsOf(const Capture* capture) {
  std::vector<CUstream_st*> streams;
  for (CUstream_st* stream : GetState().all_streams) {
    if (stream->capture.get() == capture) streams.push_back(stream);
  }
  return streams;
}

void Release(Capture* capture) {
  GetState().captures.erase(capture);
  for (CUstream_st* stream : StreamsOf(capture)) {
    stream->capture_after.clear();
    // The last reference may be this one.
    const std::shared_ptr<Capture> keep = std::move(stream->capture);
    stream->capture = nullptr;
  }
}

void AddUnique(std::vector<CUgraphNode_st*>* to, const std::vector<CUgraphNode_st*>& nodes) {
  for (CUgraphNode_st* node : nodes) {
    if (std::find(to->begin(), to->end(), node) == to->end()) to->push_back(node);
  }
}

// Whether every captured node comes before the end of the origin stream.
bool IsJoined(const Capture& capture) {
  std::set<const CUgraphNode_st*> reached;
  std::vector<const CUgraphNode_st*> pending(capture.origin->capture_after.begin(),
                                             capture.origin->capture_after.end());
  while (!pending.empty()) {
    const CUgraphNode_st* const node = pending.back();
    pending.pop_back();
    if (!reached.insert(node).second) continue;
    pending.insert(pending.end(), node->after.begin(), node->after.end());
  }
  for (size_t j = capture.first; j < capture.graph->nodes.size(); ++j) {
    if (reached.count(capture.graph->nodes[j].get()) == 0) return false;
  }
  // A fork without work must be joined, too.
  for (const CUstream_st* stream : StreamsOf(&capture)) {
    for (const CUgraphNode_st* node : stream->capture_after) {
      if (reached.count(node) == 0) return false;
    }
  }
  return true;
}

}  // namespace

cudaError_t Capture::Add(Lock&, CUstream_st* stream, Work work) {
  Capture* const capture = stream->capture.get();
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  auto node = std::make_unique<CUgraphNode_st>();
  node->index = capture->graph->nodes.size();
  node->work = std::move(work);
  node->after = stream->capture_after;
  stream->capture_after = {node.get()};
  capture->graph->nodes.push_back(std::move(node));
  return cudaSuccess;
}

cudaError_t Capture::CheckLegacy(const Lock&, const CUstream_st* stream) {
  if (!stream->legacy) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (CUstream_st* other : GetState().all_streams) {
    if (other->device != stream->device || !other->blocking() || other->capture == nullptr) {
      continue;
    }
    other->capture->invalid = true;
    error = cudaErrorStreamCaptureImplicit;
  }
  return error;
}

cudaError_t Capture::Record(const Lock&, CUstream_st* stream, CUevent_st* event) {
  if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  event->captured = true;
  event->capture = stream->capture;
  event->capture_after = stream->capture_after;
  event->op = nullptr;
  return cudaSuccess;
}

cudaError_t Capture::Wait(const Lock&, CUstream_st* stream, const CUevent_st* event) {
  const std::shared_ptr<Capture> source = event->capture.lock();
  if (!event->captured) {
    // Work outside of the graph cannot be a dependency within it.
    stream->capture->invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  // The event's capture has ended.
  if (source == nullptr || GetState().captures.count(source.get()) == 0) {
    if (stream->capture != nullptr) stream->capture->invalid = true;
    return cudaErrorCapturedEvent;
  }
  if (source->invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream->legacy) {
    source->invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  if (stream->capture == nullptr) {
    stream->capture = source;  // A fork.
    stream->capture_after = event->capture_after;
    return cudaSuccess;
  }
  if (stream->capture != source) {
    stream->capture->invalid = true;
    source->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  AddUnique(&stream->capture_after, event->capture_after);
  return cudaSuccess;
}

cudaError_t Capture::Refuse(CUstream_st* stream) {
  if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
  stream->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t CheckUnsafeCall(const Lock&) {
  const cudaStreamCaptureMode mine = GetThread().capture_mode;
  if (mine == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (Capture* capture : GetState().captures) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool forbids =
        own ? capture->mode != cudaStreamCaptureModeRelaxed
            : mine == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
    if (!forbids) continue;
    capture->invalid = true;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

namespace {

// Into a new graph, or after some nodes of one that exists.
cudaError_t BeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode, cudaGraph_t graph,
                         const cudaGraphNode_t* after, size_t count) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed) {
    return cudaErrorInvalidValue;
  }
  if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture != nullptr) return cudaErrorIllegalState;
  if (graph != nullptr && !IsGraph(lock, graph)) return cudaErrorInvalidValue;
  if (after == nullptr && count > 0) return cudaErrorInvalidValue;
  auto capture = std::make_shared<Capture>();
  capture->id = state.next_id++;
  capture->owns_graph = graph == nullptr;
  capture->graph = graph == nullptr ? new CUgraph_st : graph;
  capture->first = capture->graph->nodes.size();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  stream->capture = capture;
  stream->capture_after.assign(after, after + count);
  state.captures.insert(capture.get());
  return cudaSuccess;
}

cudaError_t EndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (graph == nullptr) return cudaErrorInvalidValue;
  *graph = nullptr;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->capture == nullptr) return cudaErrorIllegalState;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  if (capture->origin != stream) {
    capture->invalid = true;
    return cudaErrorStreamCaptureUnmatched;
  }
  cudaError_t error = cudaSuccess;
  if (capture->invalid) {
    error = cudaErrorStreamCaptureInvalidated;
  } else if (!IsJoined(*capture)) {
    error = cudaErrorStreamCaptureUnjoined;
  }
  Release(capture.get());
  if (error == cudaSuccess) {
    *graph = capture->graph;
    Adopt(lock, capture->graph);
  } else if (capture->owns_graph) {
    delete capture->graph;
  }
  return error;
}

cudaError_t CaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                        unsigned long long* id, cudaGraph_t* graph,
                        const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                        size_t* num_dependencies) {
  const Lock lock(GetState().mutex);
  if (status == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  *status = cudaStreamCaptureStatusNone;
  if (const cudaError_t error = Capture::CheckLegacy(lock, stream); error != cudaSuccess) {
    return error;
  }
  if (stream->capture == nullptr) return cudaSuccess;
  const Capture& capture = *stream->capture;
  *status = capture.invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
  if (id != nullptr) *id = capture.id;
  if (graph != nullptr) *graph = capture.graph;
  if (dependencies != nullptr) *dependencies = stream->capture_after.data();
  if (edges != nullptr) *edges = nullptr;  // All edges are plain.
  if (num_dependencies != nullptr) *num_dependencies = stream->capture_after.size();
  return cudaSuccess;
}

cudaError_t ExchangeMode(cudaStreamCaptureMode* mode) {
  if (mode == nullptr || *mode < cudaStreamCaptureModeGlobal ||
      *mode > cudaStreamCaptureModeRelaxed) {
    return cudaErrorInvalidValue;
  }
  std::swap(*mode, GetThread().capture_mode);
  return cudaSuccess;
}

}  // namespace
}  // namespace cudasim::runtime

using cudasim::runtime::Return;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return Return(cudasim::runtime::BeginCapture(stream, mode, nullptr, nullptr, 0));
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* dependencies,
                                          const cudaGraphEdgeData*, size_t numDependencies,
                                          cudaStreamCaptureMode mode) {
  if (graph == nullptr) return Return(cudaErrorInvalidValue);
  return Return(cudasim::runtime::BeginCapture(stream, mode, graph, dependencies, numDependencies));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* pGraph) {
  return Return(cudasim::runtime::EndCapture(stream, pGraph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* pCaptureStatus) {
  return cudaStreamGetCaptureInfo(stream, pCaptureStatus);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     cudaStreamCaptureStatus* captureStatus_out,
                                     unsigned long long* id_out, cudaGraph_t* graph_out,
                                     const cudaGraphNode_t** dependencies_out,
                                     const cudaGraphEdgeData** edgeData_out,
                                     size_t* numDependencies_out) {
  return Return(cudasim::runtime::CaptureInfo(stream, captureStatus_out, id_out, graph_out,
                                              dependencies_out, edgeData_out, numDependencies_out));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return Return(cudasim::runtime::ExchangeMode(mode));
}
