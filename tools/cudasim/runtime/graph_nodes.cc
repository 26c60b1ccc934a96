// Nodes that are added to a graph by hand: each is what a stream would capture in its place.
#include <algorithm>
#include <utility>

#include "capture.h"

namespace cudasim::runtime {

cudaError_t AddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                    size_t count, const Enqueuing& call) {
  if (node == nullptr || graph == nullptr) return cudaErrorInvalidValue;
  cudaStream_t stream = nullptr;
  if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      error != cudaSuccess) {
    return error;
  }
  cudaError_t error = cudaStreamBeginCaptureToGraph(stream, graph, after, nullptr, count,
                                                    cudaStreamCaptureModeRelaxed);
  if (error == cudaSuccess) {
    error = call(stream);
    if (error == cudaSuccess) *node = stream->capture_after[0];
    const cudaError_t end = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess) error = end;
  }
  cudaStreamDestroy(stream);
  return error;
}

namespace {

// What a call enqueues.
cudaError_t WorkOf(const Enqueuing& call, Work* work) {
  cudaGraph_t graph = nullptr;
  if (const cudaError_t error = cudaGraphCreate(&graph, 0); error != cudaSuccess) return error;
  cudaGraphNode_t node = nullptr;
  const cudaError_t error = AddNode(&node, graph, nullptr, 0, call);
  if (error == cudaSuccess) *work = std::move(node->work);
  cudaGraphDestroy(graph);
  return error;
}

Enqueuing Memset(const cudaMemsetParams& params) {
  return [params](cudaStream_t stream) { return SetElements(params, stream); };
}

}  // namespace

cudaError_t SetNode(cudaGraphNode_t node, const Enqueuing& call) {
  Work work;
  if (const cudaError_t error = WorkOf(call, &work); error != cudaSuccess) return error;
  const Lock lock(GetState().mutex);
  if (node == nullptr || node->work.type != work.type) return cudaErrorInvalidValue;
  std::swap(node->work, work);
  return cudaSuccess;
}

cudaError_t SetNode(cudaGraphExec_t exec, cudaGraphNode_t node, const Enqueuing& call) {
  Work work;
  if (const cudaError_t error = WorkOf(call, &work); error != cudaSuccess) return error;
  return SetNode(exec, node, std::move(work));
}

}  // namespace cudasim::runtime

using cudasim::runtime::AddNode;
using cudasim::runtime::Return;
using cudasim::runtime::SetNode;

cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                  const cudaGraphNode_t* dependencies, size_t count) {
  return Return(AddNode(node, graph, dependencies, count,
                        [](cudaStream_t stream) { return cudasim::runtime::Submit(stream, {}); }));
}

cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                 const cudaGraphNode_t* dependencies, size_t count,
                                 const cudaHostNodeParams* params) {
  if (params == nullptr) return Return(cudaErrorInvalidValue);
  return Return(AddNode(node, graph, dependencies, count, [=](cudaStream_t stream) {
    return cudaLaunchHostFunc(stream, params->fn, params->userData);
  }));
}

cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, size_t count,
                                   const cudaMemcpy3DParms* params) {
  return Return(AddNode(node, graph, dependencies, count,
                        [=](cudaStream_t stream) { return cudaMemcpy3DAsync(params, stream); }));
}

cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                     const cudaGraphNode_t* dependencies, size_t count, void* dst,
                                     const void* src, size_t bytes, cudaMemcpyKind kind) {
  return Return(AddNode(node, graph, dependencies, count, [=](cudaStream_t stream) {
    return cudaMemcpyAsync(dst, src, bytes, kind, stream);
  }));
}

cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node,
                                               void* dst, const void* src, size_t bytes,
                                               cudaMemcpyKind kind) {
  return Return(SetNode(exec, node, [=](cudaStream_t stream) {
    return cudaMemcpyAsync(dst, src, bytes, kind, stream);
  }));
}

cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, size_t count,
                                   const cudaMemsetParams* params) {
  if (params == nullptr) return Return(cudaErrorInvalidValue);
  return Return(AddNode(node, graph, dependencies, count, cudasim::runtime::Memset(*params)));
}

cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaMemsetParams* params) {
  if (params == nullptr) return Return(cudaErrorInvalidValue);
  return Return(SetNode(exec, node, cudasim::runtime::Memset(*params)));
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                     size_t count) {
  const cudasim::runtime::Lock lock(cudasim::runtime::GetState().mutex);
  if (!cudasim::runtime::IsGraph(lock, graph)) return Return(cudaErrorInvalidValue);
  for (size_t j = 0; j < count; ++j) {
    std::vector<CUgraphNode_st*>& after = to[j]->after;
    if (from[j] == to[j] || std::find(after.begin(), after.end(), from[j]) != after.end()) {
      return Return(cudaErrorInvalidValue);
    }
    after.push_back(from[j]);
  }
  return cudaSuccess;
}
