#include "core/cuda/handles.h"

#include "core/cuda/device.h"
#include "core/cuda/error.h"

namespace lockstep::cuda {

OwnedStream::OwnedStream(Device device)
    : stream_(GetStreamBackend(device.type).CreateStream(device)) {}
OwnedStream::~OwnedStream() { GetStreamBackend(stream_.device.type).DestroyStream(stream_); }

// Relaxed: memory may be taken from the system while capturing.
Graph::Capturing::Capturing(Stream stream) : stream_(stream) {
  LS_CHECK(stream.device.is_cuda() && stream.handle != nullptr,
           "a CUDA graph cannot be captured on the default stream; use an OwnedStream");
  SetDevice(stream.device);
  LS_CUDA(cudaStreamBeginCapture(static_cast<cudaStream_t>(stream.handle),
                                 cudaStreamCaptureModeRelaxed));
}

Graph::Capturing::~Capturing() {
  if (!active_) return;
  cudaGraph_t graph = nullptr;
  // What was captured is void; the error that brought us here says more than this one.
  cudaStreamEndCapture(static_cast<cudaStream_t>(stream_.handle), &graph);
  cudaGetLastError();
  if (graph != nullptr) LS_CUDA_WARN(cudaGraphDestroy(graph));
}

Graph Graph::Capturing::End() {
  active_ = false;
  cudaGraph_t graph = nullptr;
  LS_CUDA(cudaStreamEndCapture(static_cast<cudaStream_t>(stream_.handle), &graph));
  cudaGraphExec_t exec = nullptr;
  const cudaError_t code = cudaGraphInstantiate(&exec, graph, 0);
  LS_CUDA_WARN(cudaGraphDestroy(graph));
  if (code != cudaSuccess) ThrowCudaError(code, "instantiating a CUDA graph");
  Graph result;
  result.exec_ = exec;
  return result;
}

Graph::~Graph() {
  if (exec_ != nullptr) LS_CUDA_WARN(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec_)));
}

void Graph::Launch(Stream stream) const {
  LS_CHECK(defined(), "an empty CUDA graph was launched; capture it first");
  SetDevice(stream.device);
  LS_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec_),
                          static_cast<cudaStream_t>(stream.handle)));
}

}  // namespace lockstep::cuda
