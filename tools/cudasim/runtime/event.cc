// cudaEvent*.
#include <chrono>
#include <utility>

#include "capture.h"
#include "cudasim/hang.h"
#include "state.h"

namespace cudasim::runtime {
namespace {

constexpr int kPolls = 3;  // See stream.cc.

cudaError_t Create(cudaEvent_t* result, unsigned flags) {
  State& state = GetState();
  const Lock lock(state.mutex);
  constexpr unsigned kKnown = cudaEventBlockingSync | cudaEventDisableTiming;
  if (result == nullptr) return cudaErrorInvalidValue;
  if ((flags & cudaEventInterprocess) != 0) return cudaErrorNotSupported;
  if ((flags & ~kKnown) != 0) return cudaErrorInvalidValue;
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  auto* const event = new CUevent_st;
  event->device = GetThread().device;
  event->flags = flags;
  state.events.insert(event);
  *result = event;
  return cudaSuccess;
}

cudaError_t Destroy(cudaEvent_t event) {
  State& state = GetState();
  const Lock lock(state.mutex);
  static_cast<void>(Sticky(lock));  // opens a context, but destroys even after a failure
  if (state.events.erase(event) == 0) return cudaErrorInvalidResourceHandle;
  delete event;
  return cudaSuccess;
}

cudaError_t Record(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  State& state = GetState();
  Lock lock(state.mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr || state.events.count(event) == 0) return cudaErrorInvalidResourceHandle;
  if (flags == cudaEventRecordExternal) return cudaErrorNotSupported;
  if (flags != cudaEventRecordDefault) return cudaErrorInvalidValue;
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) return Capture::Record(lock, stream, event);
  Work work;
  work.type = cudaGraphNodeTypeEventRecord;
  work.what = "cudaEventRecord";
  std::shared_ptr<Op> op;
  const cudaError_t error = SubmitLocked(lock, stream, std::move(work), &op);
  if (error != cudaSuccess) return error;
  event->op = std::move(op);
  event->captured = false;
  event->polls = 0;
  return cudaSuccess;
}

// For calls with an event that must not be part of a capture.
cudaError_t Find(const Lock& lock, cudaEvent_t event) {
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  if (GetState().events.count(event) == 0) return cudaErrorInvalidResourceHandle;
  if (event->captured) {
    if (const auto capture = event->capture.lock(); capture != nullptr) capture->invalid = true;
    return cudaErrorCapturedEvent;
  }
  return CheckUnsafeCall(lock);
}

cudaError_t Query(cudaEvent_t event) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (const cudaError_t error = Find(lock, event); error != cudaSuccess) return error;
  if (event->op == nullptr) return cudaSuccess;  // An event that was never recorded counts as done.
  if (!event->op->done) {
    if (++event->polls >= kPolls) Demand(lock, event->op);
    return cudaErrorNotReady;
  }
  state.host.Join(event->op->clock);
  return state.devices[event->device].sticky;
}

cudaError_t Synchronize(cudaEvent_t event) {
  State& state = GetState();
  Lock lock(state.mutex);
  if (const cudaError_t error = Find(lock, event); error != cudaSuccess) return error;
  const std::shared_ptr<Op> op = event->op;
  const int device = event->device;
  if (op != nullptr) WaitFor(lock, op);
  return state.devices[device].sticky;
}

cudaError_t Elapsed(float* ms, cudaEvent_t start, cudaEvent_t end) {
  State& state = GetState();
  const Lock lock(state.mutex);
  if (ms == nullptr) return cudaErrorInvalidValue;
  for (const cudaEvent_t event : {start, end}) {
    if (const cudaError_t error = Find(lock, event); error != cudaSuccess) return error;
    if (event->op == nullptr || (event->flags & cudaEventDisableTiming) != 0 ||
        event->device != start->device) {
      return cudaErrorInvalidResourceHandle;
    }
  }
  if (!start->op->done || !end->op->done) return cudaErrorNotReady;
  const std::chrono::duration<float, std::milli> time = end->op->finished - start->op->finished;
  *ms = time.count();
  return cudaSuccess;
}

}  // namespace
}  // namespace cudasim::runtime

using cudasim::runtime::Return;

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return Return(cudasim::runtime::Create(event, cudaEventDefault));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return Return(cudasim::runtime::Create(event, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { return Return(cudasim::runtime::Destroy(event)); }

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Return(cudasim::runtime::Record(event, stream, cudaEventRecordDefault));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  return Return(cudasim::runtime::Record(event, stream, flags));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  cudasim::runtime::MayHang("cudaEventQuery");
  return Return(cudasim::runtime::Query(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Return(cudasim::runtime::Synchronize(event));
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return Return(cudasim::runtime::Elapsed(ms, start, end));
}
