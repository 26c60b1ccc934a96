// Fills core's StreamBackend for CUDA. Every call sets the thread's device first: CUDA creates a
// context on the current device, which is GPU 0 in a thread that never chose one.
#include <memory>

#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "core/cuda/pinned.h"
#include "core/stream.h"

namespace lockstep::cuda {
namespace {

cudaStream_t Handle(const Stream& stream) { return static_cast<cudaStream_t>(stream.handle.get()); }
cudaEvent_t Handle(void* event) { return static_cast<cudaEvent_t>(event); }

class CudaStreamBackend : public StreamBackend {
 public:
  // The new stream and the default stream do not wait for each other.
  Stream CreateStream(Device device) override {
    SetDevice(device);
    cudaStream_t stream = nullptr;
    LS_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    // Waits, since the allocator knows streams by their handle, which the next stream may get.
    const auto destroy = [device](void* handle) {
      LS_CUDA_WARN(cudaSetDevice(device.index));
      LS_CUDA_WARN(cudaStreamSynchronize(static_cast<cudaStream_t>(handle)));
      LS_CUDA_WARN(cudaStreamDestroy(static_cast<cudaStream_t>(handle)));
    };
    return {device, std::shared_ptr<void>(stream, destroy)};
  }
  void Synchronize(Stream stream) override {
    SetDevice(stream.device);
    LS_CUDA(cudaStreamSynchronize(Handle(stream)));
  }

  void* CreateEvent(Device device) override {
    SetDevice(device);
    cudaEvent_t event = nullptr;
    LS_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void DestroyEvent(Device device, void* event) noexcept override {
    LS_CUDA_WARN(cudaSetDevice(device.index));
    LS_CUDA_WARN(cudaEventDestroy(Handle(event)));
  }
  void RecordEvent(void* event, Stream stream) override {
    SetDevice(stream.device);
    LS_CUDA(cudaEventRecord(Handle(event), Handle(stream)));
  }
  void WaitEvent(void* event, Stream stream) override {
    SetDevice(stream.device);
    LS_CUDA(cudaStreamWaitEvent(Handle(stream), Handle(event), 0));
  }
  bool QueryEvent(Device device, void* event) override {
    SetDevice(device);
    const cudaError_t code = cudaEventQuery(Handle(event));
    if (code == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    if (code != cudaSuccess) ThrowCudaError(code, "querying an event");
    return true;
  }
  void SynchronizeEvent(Device device, void* event) override {
    SetDevice(device);
    LS_CUDA(cudaEventSynchronize(Handle(event)));
  }

  std::shared_ptr<void> AllocateHost(int64_t bytes, Device device) override {
    return AllocatePinned(bytes, device);
  }
  void CopyToHost(void* to, const void* from, int64_t bytes, Stream stream) override {
    Copy(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  }
  void CopyFromHost(void* to, const void* from, int64_t bytes, Stream stream) override {
    Copy(to, from, bytes, cudaMemcpyHostToDevice, stream);
  }

 private:
  static void Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Stream stream) {
    if (bytes == 0) return;
    SetDevice(stream.device);
    LS_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, Handle(stream)));
  }
};

[[maybe_unused]] const bool registered = [] {
  RegisterStreamBackend(DeviceType::kCuda, std::make_unique<CudaStreamBackend>());
  return true;
}();

}  // namespace
}  // namespace lockstep::cuda
