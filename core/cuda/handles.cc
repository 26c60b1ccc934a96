#include "core/cuda/handles.h"

#include <array>
#include <atomic>

#include "core/cuda/device.h"
#include "core/cuda/error.h"

namespace lockstep::cuda {

OwnedStream::OwnedStream(Device device)
    : stream_(GetStreamBackend(device.type).CreateStream(device)) {}
OwnedStream::~OwnedStream() {
  try {
    Synchronize(stream_);
  } catch (const Error&) {
    // The device has failed and runs nothing any more.
  }
}

namespace {

std::atomic<int>& CapturesOfDevice(Device device) {
  static std::array<std::atomic<int>, 64> captures{};
  return captures[static_cast<size_t>(device.index) % captures.size()];
}

}  // namespace

bool Graph::CapturesOn(Device device) { return CapturesOfDevice(device) > 0; }

// Relaxed mode: memory may be taken from the system while capturing.
Graph::Capturing::Capturing(Stream stream) : stream_(std::move(stream)) {
  LS_CHECK(stream_.device.is_cuda() && stream_.handle != nullptr,
           "a CUDA graph cannot be captured on the default stream; use an OwnedStream");
  SetDevice(stream_.device);
  // Counted before the capture begins: from then on nobody may synchronise.
  ++CapturesOfDevice(stream_.device);
  const cudaError_t begun = cudaStreamBeginCapture(static_cast<cudaStream_t>(stream_.handle.get()),
                                                   cudaStreamCaptureModeRelaxed);
  if (begun == cudaSuccess) return;
  --CapturesOfDevice(stream_.device);
  ThrowCudaError(begun, "beginning the capture of a CUDA graph");
}

Graph::Capturing::~Capturing() {
  if (!active_) return;
  cudaGraph_t graph = nullptr;
  // The capture is void; the exception in flight says more than this call's error.
  cudaStreamEndCapture(static_cast<cudaStream_t>(stream_.handle.get()), &graph);
  --CapturesOfDevice(stream_.device);
  cudaGetLastError();
  if (graph != nullptr) LS_CUDA_WARN(cudaGraphDestroy(graph));
}

Graph Graph::Capturing::End() {
  active_ = false;
  cudaGraph_t graph = nullptr;
  const cudaError_t ended =
      cudaStreamEndCapture(static_cast<cudaStream_t>(stream_.handle.get()), &graph);
  --CapturesOfDevice(stream_.device);
  if (ended != cudaSuccess) ThrowCudaError(ended, "ending the capture of a CUDA graph");
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
                          static_cast<cudaStream_t>(stream.handle.get())));
}

}  // namespace lockstep::cuda
