#include "core/cuda/handles.h"

#include <mutex>
#include <vector>

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
  Graph result;
  const cudaError_t code = cudaGraphInstantiate(&result.exec_, graph, 0);
  LS_CUDA_WARN(cudaGraphDestroy(graph));
  if (code != cudaSuccess) ThrowCudaError(code, "instantiating a CUDA graph");
  return result;
}

Graph::~Graph() {
  if (exec_ != nullptr) LS_CUDA_WARN(cudaGraphExecDestroy(exec_));
}

void Graph::Launch(Stream stream) const {
  LS_CHECK(defined(), "an empty CUDA graph was launched; capture it first");
  SetDevice(stream.device);
  LS_CUDA(cudaGraphLaunch(exec_, static_cast<cudaStream_t>(stream.handle)));
}

cublasLtHandle_t BlasLtHandle(Device device) {
  struct Handles {
    std::mutex mutex;
    std::vector<cublasLtHandle_t> of_device;
  };
  static Handles& handles = *new Handles;
  const std::lock_guard lock(handles.mutex);
  const auto index = static_cast<size_t>(device.index);
  if (handles.of_device.size() <= index) handles.of_device.resize(index + 1);
  cublasLtHandle_t& handle = handles.of_device[index];
  if (handle == nullptr) {
    SetDevice(device);
    const cublasStatus_t status = cublasLtCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw Error(
          StrCat("cuBLASLt does not start on ", device, ": ", cublasLtGetStatusString(status)));
    }
  }
  return handle;
}

}  // namespace lockstep::cuda
