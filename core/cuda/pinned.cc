#include "core/cuda/pinned.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "core/round_up.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kSmallest = 256;
constexpr int64_t kLarge = 1 << 20;
constexpr int64_t kChunk = 4 << 20;        // large copies are split into these
constexpr int64_t kMaxPending = 64 << 20;  // bytes in flight to devices

// Free blocks by size. It never shrinks: what one step needs pinned, every step does.
class PinnedPool {
 public:
  void* Take(int64_t bytes, Device device) {
    const int64_t size = SizeOf(bytes);
    {
      std::lock_guard lock(mutex_);
      std::vector<void*>& blocks = free_[size];
      if (!blocks.empty()) {
        void* data = blocks.back();
        blocks.pop_back();
        return data;
      }
    }
    SetDevice(device);
    void* data = nullptr;
    const cudaError_t code = cudaHostAlloc(&data, static_cast<size_t>(size), cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemoryError(
          StrCat("out of page-locked memory on the host: cannot allocate ", bytes, " bytes"));
    }
    if (code != cudaSuccess) ThrowCudaError(code, StrCat("pinning ", bytes, " bytes of the host"));
    return data;
  }
  void Give(void* data, int64_t bytes) {
    std::lock_guard lock(mutex_);
    free_[SizeOf(bytes)].push_back(data);
  }

 private:
  // Powers of two, so that blocks find new users; of large ones, which would waste too much, the
  // CPU's allocator's sizes.
  static int64_t SizeOf(int64_t bytes) {
    if (bytes > kLarge) return CpuSizeClass(bytes);
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kSmallest))));
  }

  std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> free_;
};

// Never destroyed: memory may come back after any static of ours is gone.
PinnedPool& Pool() {
  static PinnedPool& pool = *new PinnedPool;
  return pool;
}

// Blocks that copies to devices are still reading.
class PendingCopies {
 public:
  // Returns a block that may be filled; waits while too much is pending.
  std::shared_ptr<void> Take(int64_t bytes, Device device) {
    std::unique_lock lock(mutex_);
    while (!pending_.empty()) {
      if (pending_bytes_ + bytes > kMaxPending) {
        // Other threads, which may use other devices, do not wait for this copy.
        const Copy oldest = std::move(pending_.front());
        pending_.pop_front();
        lock.unlock();
        oldest.done->Synchronize();
        lock.lock();
        pending_bytes_ -= oldest.bytes;
      } else if (pending_.front().done->Query()) {
        pending_bytes_ -= pending_.front().bytes;
        pending_.pop_front();
      } else {
        break;
      }
    }
    return AllocatePinned(bytes, device);
  }
  // The stream has just been told to read the block.
  void Add(std::shared_ptr<void> block, int64_t bytes, Stream stream) {
    auto done = std::make_unique<Event>(stream.device);
    done->Record(stream);
    std::lock_guard lock(mutex_);
    pending_bytes_ += bytes;
    pending_.push_back({std::move(block), bytes, std::move(done)});
  }

 private:
  struct Copy {
    std::shared_ptr<void> block;
    int64_t bytes;
    std::unique_ptr<Event> done;
  };
  std::mutex mutex_;
  std::deque<Copy> pending_;  // oldest first
  int64_t pending_bytes_ = 0;
};

PendingCopies& Pending() {
  static PendingCopies& pending = *new PendingCopies;
  return pending;
}

void CopyAsync(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, Stream stream) {
  SetDevice(stream.device);
  LS_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind,
                          static_cast<cudaStream_t>(stream.handle.get())));
}

}  // namespace

std::shared_ptr<void> AllocatePinned(int64_t bytes, Device device) {
  if (bytes <= 0) return nullptr;
  return {Pool().Take(bytes, device), [bytes](void* data) { Pool().Give(data, bytes); }};
}

void CopyFromHost(void* to, const void* from, int64_t bytes, Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  // The default stream cannot be captured, and must not be queried during another stream's capture.
  if (stream.handle != nullptr) {
    SetDevice(stream.device);
    LS_CUDA(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle.get()), &status));
  }
  if (status != cudaStreamCaptureStatusNone) {
    throw Error(StrCat("a copy of ", bytes,
                       " bytes from the host cannot be captured in a CUDA graph: each launch would "
                       "copy whatever is there by then. Make it before the capture"));
  }
  for (int64_t at = 0; at < bytes; at += kChunk) {
    const int64_t n = std::min(kChunk, bytes - at);
    std::shared_ptr<void> block = Pending().Take(n, stream.device);
    std::memcpy(block.get(), static_cast<const char*>(from) + at, static_cast<size_t>(n));
    CopyAsync(static_cast<char*>(to) + at, block.get(), n, cudaMemcpyHostToDevice, stream);
    Pending().Add(std::move(block), n, stream);
  }
}

void CopyToHostAndWait(void* to, const void* from, int64_t bytes, Stream stream) {
  struct Part {
    std::shared_ptr<void> block;
    int64_t at = 0, bytes = 0;
    std::unique_ptr<Event> done;
  };
  // While one part is copied out of its block, the next one is in flight.
  std::array<Part, 2> parts;
  const auto finish = [&](Part& part) {
    if (!part.done) return;
    part.done->Synchronize();
    std::memcpy(static_cast<char*>(to) + part.at, part.block.get(),
                static_cast<size_t>(part.bytes));
    part.done = nullptr;
  };
  int i = 0;
  for (int64_t at = 0; at < bytes; at += kChunk, i ^= 1) {
    Part& part = parts[i];
    finish(part);
    part.at = at;
    part.bytes = std::min(kChunk, bytes - at);
    if (!part.block) part.block = AllocatePinned(part.bytes, stream.device);
    CopyAsync(part.block.get(), static_cast<const char*>(from) + at, part.bytes,
              cudaMemcpyDeviceToHost, stream);
    part.done = std::make_unique<Event>(stream.device);
    part.done->Record(stream);
  }
  finish(parts[i]);
  finish(parts[i ^ 1]);
}

}  // namespace lockstep::cuda
