// cudaStream*, cudaLaunchHostFunc and waiting for devices.
#include <algorithm>
#include <utility>

#include "capture.h"
#include "cudasim/settings.h"
#include "state.h"

namespace cudasim::runtime {
namespace {

// With CUDASIM_DELAY, work begins after this many polls have found it unfinished.
constexpr int kPolls = 3;
constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;  // Smaller is more urgent.

cudaError_t Create(cudaStream_t* result, unsigned flags, int priority) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (result == nullptr || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  auto* const stream = new CUstream_st;
  stream->device = GetThread().device;
  stream->flags = flags;
  stream->priority = std::clamp(priority, kGreatestPriority, kLeastPriority);
  stream->id = state.next_id++;
  state.streams.insert(stream);
  state.all_streams.insert(stream);
  *result = stream;
  return cudaSuccess;
}

// Returns at once; enqueued work still runs.
cudaError_t Destroy(cudaStream_t handle) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (state.streams.count(handle) == 0) return cudaErrorInvalidResourceHandle;
  if (handle->capture != nullptr) {
    handle->capture->invalid = true;
    if (handle->capture->origin == handle) {
      // The capture can no longer be ended: its other streams become free, and its graph is
      // dropped.
      const std::shared_ptr<Capture> capture = handle->capture;
      for (CUstream_st* stream : state.all_streams) {
        if (stream->capture == capture) stream->capture = nullptr;
      }
      state.captures.erase(capture.get());
      if (capture->owns_graph) delete capture->graph;
    }
    handle->capture = nullptr;
  }
  state.streams.erase(handle);
  if (!handle->has_worker) {
    state.all_streams.erase(handle);
    delete handle;
    return cudaSuccess;
  }
  handle->destroyed = true;
  if (handle->last != nullptr) Demand(lock, handle->last);
  state.changed.notify_all();
  return cudaSuccess;
}

// For calls with a stream that must not be captured: finds it, or returns the error.
cudaError_t Find(const Lock& lock, cudaStream_t handle, CUstream_st** stream) {
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  *stream = Resolve(lock, handle);
  if (*stream == nullptr) return cudaErrorInvalidResourceHandle;
  if ((*stream)->capture != nullptr) return Capture::Refuse(*stream);
  if (const cudaError_t error = Capture::CheckLegacy(lock, *stream); error != cudaSuccess) {
    return error;
  }
  return CheckUnsafeCall(lock);
}

// The newest operation that a wait for `stream` waits for.
std::vector<std::shared_ptr<Op>> Newest(const CUstream_st* stream) {
  std::vector<std::shared_ptr<Op>> ops;
  for (const CUstream_st* other : GetState().all_streams) {
    const bool counts =
        other == stream || (stream->legacy && other->device == stream->device && other->blocking());
    if (counts && other->last != nullptr) ops.push_back(other->last);
  }
  return ops;
}

cudaError_t Synchronize(cudaStream_t handle) {
  Lock lock(GetState().mutex);
  CUstream_st* stream = nullptr;
  if (const cudaError_t error = Find(lock, handle, &stream); error != cudaSuccess) return error;
  const int device = stream->device;
  for (const auto& op : Newest(stream)) WaitFor(lock, op);
  return GetState().devices[device].sticky;
}

cudaError_t Query(cudaStream_t handle) {
  State& state = GetState();
  Lock lock(state.mutex);
  CUstream_st* stream = nullptr;
  if (const cudaError_t error = Find(lock, handle, &stream); error != cudaSuccess) return error;
  bool done = true;
  const bool impatient = ++stream->polls >= kPolls;
  for (const auto& op : Newest(stream)) {
    if (op->done) continue;
    done = false;
    if (impatient) Demand(lock, op);
  }
  if (!done) return cudaErrorNotReady;
  for (const auto& op : Newest(stream)) state.host.Join(op->clock);
  return state.devices[stream->device].sticky;
}

cudaError_t WaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  State& state = GetState();
  Lock lock(state.mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr || state.events.count(event) == 0) return cudaErrorInvalidResourceHandle;
  if (flags == cudaEventWaitExternal) return cudaErrorNotSupported;
  if (flags != cudaEventWaitDefault) return cudaErrorInvalidValue;
  if (stream->capture != nullptr || event->captured) return Capture::Wait(lock, stream, event);
  if (event->op == nullptr)
    return cudaSuccess;  // Never recorded: waits for nothing, as
                         // documented.
  Work work;
  work.type = cudaGraphNodeTypeWaitEvent;
  work.what = "cudaStreamWaitEvent";
  work.waits = {event->op};
  return SubmitLocked(lock, stream, std::move(work), nullptr);
}

cudaError_t HostFunction(cudaStream_t stream, const char* name, std::function<void()> function) {
  Work work;
  work.type = cudaGraphNodeTypeHost;
  work.what = name;
  work.run = [function = std::move(function)] {
    function();
    return cudaSuccess;
  };
  return Submit(stream, std::move(work));
}

// Reads a property of a stream.
template <typename T, typename Get>
cudaError_t Read(cudaStream_t handle, T* value, Get get) {
  const Lock lock(GetState().mutex);
  if (value == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  const CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  *value = get(*stream);
  return cudaSuccess;
}

cudaError_t SynchronizeDevice() {
  State& state = GetState();
  Lock lock(state.mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  const int device = GetThread().device;
  cudaError_t refused = cudaSuccess;
  for (CUstream_st* stream : state.all_streams) {
    if (stream->device != device || stream->capture == nullptr) continue;
    stream->capture->invalid = true;
    refused = cudaErrorStreamCaptureUnsupported;
  }
  if (refused != cudaSuccess) return refused;
  WaitForDevice(lock, device);
  return state.devices[device].sticky;
}

}  // namespace
}  // namespace cudasim::runtime

using cudasim::runtime::Return;

cudaError_t cudaStreamCreate(cudaStream_t* pStream) {
  return Return(cudasim::runtime::Create(pStream, cudaStreamDefault, 0));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* pStream, unsigned int flags) {
  return Return(cudasim::runtime::Create(pStream, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* pStream, unsigned int flags, int priority) {
  return Return(cudasim::runtime::Create(pStream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Return(cudasim::runtime::Destroy(stream));
}

cudaError_t cudaStreamGetPriority(cudaStream_t hStream, int* priority) {
  return Return(cudasim::runtime::Read(hStream, priority,
                                       [](const CUstream_st& stream) { return stream.priority; }));
}

cudaError_t cudaStreamGetFlags(cudaStream_t hStream, unsigned int* flags) {
  return Return(cudasim::runtime::Read(hStream, flags,
                                       [](const CUstream_st& stream) { return stream.flags; }));
}

cudaError_t cudaStreamGetId(cudaStream_t hStream, unsigned long long* streamId) {
  return Return(cudasim::runtime::Read(hStream, streamId,
                                       [](const CUstream_st& stream) { return stream.id; }));
}

cudaError_t cudaStreamGetDevice(cudaStream_t hStream, int* device) {
  return Return(cudasim::runtime::Read(hStream, device,
                                       [](const CUstream_st& stream) { return stream.device; }));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  if (leastPriority != nullptr) *leastPriority = cudasim::runtime::kLeastPriority;
  if (greatestPriority != nullptr) *greatestPriority = cudasim::runtime::kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Return(cudasim::runtime::Synchronize(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return Return(cudasim::runtime::Query(stream)); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return Return(cudasim::runtime::WaitEvent(stream, event, flags));
}

cudaError_t cudaDeviceSynchronize() { return Return(cudasim::runtime::SynchronizeDevice()); }

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void* userData) {
  if (fn == nullptr) return Return(cudaErrorInvalidValue);
  return Return(
      cudasim::runtime::HostFunction(stream, "cudaLaunchHostFunc", [=] { fn(userData); }));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                  void* userData, unsigned int flags) {
  if (callback == nullptr || flags != 0) return Return(cudaErrorInvalidValue);
  return Return(cudasim::runtime::HostFunction(stream, "cudaStreamAddCallback",
                                               [=] { callback(stream, cudaSuccess, userData); }));
}
