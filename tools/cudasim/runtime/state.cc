// The simulated machine's state, and the threads that run the streams.
#include "state.h"

#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "capture.h"
#include "cudasim/settings.h"

namespace cudasim::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

CUstream_st* NewStream(State* state, int device, unsigned flags) {
  auto* const stream = new CUstream_st;
  stream->device = device;
  stream->flags = flags;
  stream->id = state->next_id++;
  state->all_streams.insert(stream);
  return stream;
}

// At exit, running operations finish and waiting ones are dropped, as on a real GPU.
void Unload() {
  State& state = GetState();
  Lock lock(state.mutex);
  state.unloading = true;
  state.changed.notify_all();
  state.changed.wait_for(lock, milliseconds(2000), [&] { return state.running == 0; });
}

State* NewState() {
  auto* const state = new State;
  for (int index = 0; index < GetSettings().devices; ++index) {
    Device& device = state->devices.emplace_back();
    device.index = index;
    device.legacy = NewStream(state, index, cudaStreamDefault);
    device.legacy->legacy = true;
    device.default_pool.device = index;
    device.default_pool.is_default = true;
    device.pool = &device.default_pool;
    state->pools.insert(&device.default_pool);
  }
  InstallFaultHandler();
  std::atexit(Unload);
  return state;
}

// The per-thread default streams of a host thread.
struct ThreadStreams {
  ~ThreadStreams() {
    State& state = GetState();
    const Lock lock(state.mutex);
    for (CUstream_st* stream : of_device) {
      if (stream == nullptr) continue;
      if (stream->has_worker) {
        stream->destroyed = true;
        if (stream->last != nullptr) Demand(lock, stream->last);
      } else {
        state.all_streams.erase(stream);
        delete stream;
      }
    }
    state.changed.notify_all();
  }
  CUstream_st* of_device[8] = {};
};

bool IsReady(const Op& op) {
  for (const auto& wait : op.waits) {
    if (!wait->done) return false;
  }
  return true;
}

cudaError_t Run(const std::function<cudaError_t()>& run) {
  try {
    return run ? run() : cudaSuccess;
  } catch (const std::exception&) {
    return cudaErrorLaunchFailure;  // Already reported.
  }
}

// Runs the operation at the head of the queue, with the lock released.
void RunFront(Lock* lock, CUstream_st* stream) {
  State& state = GetState();
  const std::shared_ptr<Op> op = stream->queue.front();
  const bool skip = state.devices[stream->device].sticky != cudaSuccess;
  auto run = std::move(op->work.run);
  op->work.run = nullptr;
  ++state.running;
  lock->unlock();
  const cudaError_t error = skip ? cudaSuccess : Run(run);
  run = nullptr;  // Destructors of what it holds may call the runtime.
  lock->lock();
  --state.running;
  Device& device = state.devices[stream->device];
  if (error != cudaSuccess && device.sticky == cudaSuccess) device.sticky = error;
  op->done = true;
  op->finished = steady_clock::now();
  op->waits.clear();
  stream->queue.pop_front();
  state.changed.notify_all();
}

void WorkOff(CUstream_st* stream) {
  State& state = GetState();
  Lock lock(state.mutex);
  while (!state.unloading) {
    if (stream->queue.empty()) {
      if (stream->destroyed) {
        state.all_streams.erase(stream);
        delete stream;
        return;
      }
      state.changed.wait(lock);
      continue;
    }
    const Op& front = *stream->queue.front();
    if (!IsReady(front)) {
      state.changed.wait(lock);
    } else if (!front.demanded && front.due > steady_clock::now()) {
      const TimePoint due = front.due;
      state.changed.wait_until(lock, due);
    } else {
      RunFront(&lock, stream);
    }
  }
}

// Sets what an operation waits for in other streams, and its clock.
void Order(const State& state, CUstream_st* stream, Op* op) {
  const auto follow = [&](const CUstream_st* other) {
    if (other->last != nullptr && !other->last->done) op->waits.push_back(other->last);
    op->clock.Join(other->clock);
  };
  op->clock = stream->clock;
  op->clock.Join(state.host);
  for (const auto& wait : op->waits) op->clock.Join(wait->clock);
  if (stream->legacy) {
    for (const CUstream_st* other : state.all_streams) {
      if (other != stream && other->device == stream->device && other->blocking()) follow(other);
    }
  } else if (stream->blocking()) {
    follow(state.devices[stream->device].legacy);
  }
  op->clock.Set(stream->id, ++stream->ticks);
}

}  // namespace

State& GetState() {
  static State* const state = NewState();
  return *state;
}

ThreadState& GetThread() {
  thread_local ThreadState thread;
  return thread;
}

std::atomic<bool>& Approximated() {
  static std::atomic<bool> approximated{false};
  return approximated;
}

Device& CurrentDevice(const Lock&) { return GetState().devices[GetThread().device]; }

cudaError_t Sticky(const Lock& lock) {
  if (GetState().devices.empty()) return cudaErrorNoDevice;
  CurrentDevice(lock).context = true;
  return CurrentDevice(lock).sticky;
}

CUstream_st* Resolve(const Lock& lock, cudaStream_t handle) {
  State& state = GetState();
  if (handle == nullptr || handle == cudaStreamLegacy) return CurrentDevice(lock).legacy;
  if (handle == cudaStreamPerThread) {
    thread_local ThreadStreams streams;
    CUstream_st*& stream = streams.of_device[GetThread().device];
    if (stream == nullptr) stream = NewStream(&state, GetThread().device, cudaStreamDefault);
    return stream;
  }
  return state.streams.count(handle) != 0 ? handle : nullptr;
}

cudaError_t Submit(cudaStream_t handle, Work work, std::shared_ptr<Op>* op) {
  Lock lock(GetState().mutex);
  if (const cudaError_t error = Sticky(lock); error != cudaSuccess) return error;
  CUstream_st* const stream = Resolve(lock, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  return SubmitLocked(lock, stream, std::move(work), op);
}

cudaError_t SubmitLocked(Lock& lock, CUstream_st* stream, Work work, std::shared_ptr<Op>* result) {
  State& state = GetState();
  if (state.unloading) return cudaErrorCudartUnloading;
  if (work.device < 0) work.device = stream->device;
  if (stream->capture != nullptr) return Capture::Add(lock, stream, std::move(work));
  if (const cudaError_t error = Capture::CheckLegacy(lock, stream); error != cudaSuccess) {
    return error;
  }
  auto op = std::make_shared<Op>();
  op->work = std::move(work);
  op->stream = stream;
  op->waits = std::move(op->work.waits);
  const int delay = GetSettings().delay_ms;
  op->due = steady_clock::now() + milliseconds(delay);
  op->demanded = delay == 0;
  Order(state, stream, op.get());
  std::vector<std::string> bugs;
  if (GetSettings().ordering) CheckOrdering(lock, *op, &bugs);
  if (!bugs.empty()) {
    // Report before the work runs, since it may well fault.
    lock.unlock();
    for (const std::string& text : bugs) ReportBug(op->work.device, Bug::kRace, text);
    lock.lock();
  }
  stream->clock = op->clock;
  stream->last = op;
  stream->polls = 0;
  stream->queue.push_back(op);
  if (!stream->has_worker) {
    stream->has_worker = true;
    std::thread(WorkOff, stream).detach();
  }
  state.changed.notify_all();
  if (result != nullptr) *result = op;
  return cudaSuccess;
}

void Demand(const Lock&, const std::shared_ptr<Op>& op) {
  // Without recursion: chains of events can be long.
  std::vector<Op*> pending = {op.get()};
  while (!pending.empty()) {
    Op* const last = pending.back();
    pending.pop_back();
    if (last->done) continue;
    for (const auto& earlier : last->stream->queue) {
      if (!earlier->demanded) {
        earlier->demanded = true;
        for (const auto& wait : earlier->waits) pending.push_back(wait.get());
      }
      if (earlier.get() == last) break;
    }
  }
  GetState().changed.notify_all();
}

void WaitFor(Lock& lock, const std::shared_ptr<Op>& op) {
  State& state = GetState();
  Demand(lock, op);
  state.changed.wait(lock, [&] { return op->done || state.unloading; });
  state.host.Join(op->clock);
}

void WaitForDevice(Lock& lock, int device) {
  std::vector<std::shared_ptr<Op>> newest;
  for (const CUstream_st* stream : GetState().all_streams) {
    if (stream->device == device && stream->last != nullptr) newest.push_back(stream->last);
  }
  // The youngest stream first: with CUDASIM_DELAY, work that should have waited for an older stream
  // runs before it.
  for (auto op = newest.rbegin(); op != newest.rend(); ++op) WaitFor(lock, *op);
}

}  // namespace cudasim::runtime
