// Fills core's Allocator for CUDA: memory is taken from the driver in segments, cut into blocks,
// and reused without asking the driver again.
//
// A block belongs to the stream it was allocated for and is reused only on that stream: work
// submitted later runs after whatever still uses the block, so nobody waits. Before memory is
// freed, Storage makes the stream wait for other streams that used it. Adjacent free blocks in a
// segment are merged. Memory is taken from other streams only when the driver has no more: their
// free segments go back to the driver, which waits for the device.
#include "core/allocator.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/cuda/block_pool.h"
#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "core/cuda/graph_space.h"
#include "core/philox.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 50;

std::string Megabytes(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MB", static_cast<double>(bytes) / 1e6);
  return text;
}

// The seed in LOCKSTEP_CUDA_POISON, if that is set.
std::optional<uint64_t> PoisonSeed() {
  const char* text = std::getenv("LOCKSTEP_CUDA_POISON");
  if (text == nullptr) return std::nullopt;
  uint64_t seed = 0;
  const char* end = text + std::strlen(text);
  LS_CHECK(std::from_chars(text, end, seed).ptr == end && end != text,
           "LOCKSTEP_CUDA_POISON=", text,
           " must be a number: the seed of the bytes that fill fresh memory");
  return seed;
}

// The statistics and checks of all device allocators.
class StatsAllocator : public Allocator {
 public:
  StatsAllocator(Device device, std::optional<uint64_t> poison)
      : device_(device), poison_(poison) {}

  AllocatorStats stats() const override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void ResetPeak() override {
    std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.live_bytes + HeldBytes();
  }
  void SetLimit(int64_t bytes) override {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
  }

 protected:
  // Call it with the lock held.
  void CheckRequest(int64_t bytes) const {
    LS_CHECK(bytes >= 0, "cannot allocate ", bytes, " bytes");
    if (bytes > kMaxBytes) ThrowOutOfMemory(bytes, "more than any device has");
    if (limit_ > 0 && bytes > limit_ - stats_.live_bytes) {
      ThrowOutOfMemory(bytes, StrCat("the limit is ", Megabytes(limit_)));
    }
  }
  void CountAllocation(void* data, int64_t bytes) {
    live_[data] = bytes;
    stats_.live_bytes += bytes;
    ++stats_.allocations;
    NotePeak();
  }
  void NotePeak() {
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes + HeldBytes());
  }
  // Free memory that counts as live.
  virtual int64_t HeldBytes() const { return 0; }
  // If there is a seed, fills a block that is about to be handed out with one byte, drawn from the
  // seed and the block's number: 0xff, which is NaN in every floating dtype, in half of the cases,
  // and any byte in the others. The fill is ordered on the stream, like the block's use, so a
  // captured CUDA graph repeats it at every launch.
  void Poison(void* data, int64_t bytes, const Stream& stream) const {
    if (!poison_) return;
    const uint32_t draw = Philox(*poison_).At(0, static_cast<uint64_t>(stats_.allocations));
    const int byte = draw % 2 == 0 ? 0xff : static_cast<int>(draw >> 24);
    SetDevice(device_);
    LS_CUDA(cudaMemsetAsync(data, byte, static_cast<size_t>(bytes),
                            static_cast<cudaStream_t>(stream.handle.get())));
  }
  // Returns false, with a warning, if the memory is not live.
  bool CountFree(void* data) {
    const auto it = live_.find(data);
    if (it == live_.end()) {
      std::fprintf(stderr, "warning: device %d: memory was freed that was not allocated\n",
                   device_.index);
      return false;
    }
    stats_.live_bytes -= it->second;
    live_.erase(it);
    return true;
  }
  // Memory from the driver, or null if it has no more.
  template <class F>
  void* FromDriver(const F& allocate) {
    void* data = nullptr;
    const cudaError_t code = allocate(&data);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    if (code != cudaSuccess) ThrowCudaError(code, StrCat("allocating memory on ", device_));
    ++stats_.system_allocations;
    return data;
  }

  [[noreturn]] void ThrowOutOfMemory(int64_t bytes, const std::string& why) const {
    std::map<int64_t, int64_t> counts;  // by size
    for (const auto& [data, size] : live_) ++counts[size];
    std::vector<std::pair<int64_t, int64_t>> holders(counts.begin(), counts.end());
    std::sort(holders.begin(), holders.end(),
              [](const auto& a, const auto& b) { return a.first * a.second > b.first * b.second; });
    std::string largest;
    for (size_t i = 0; i < std::min<size_t>(5, holders.size()); ++i) {
      largest += StrCat(i == 0 ? "; the largest holders are " : ", ", holders[i].second, " x ",
                        Megabytes(holders[i].first));
    }
    throw OutOfMemoryError(StrCat("out of memory on ", device_, ": ", Megabytes(bytes),
                                  " requested, ", Megabytes(stats_.live_bytes), " live in ",
                                  live_.size(), " tensors, ", Megabytes(stats_.reserved_bytes),
                                  " taken from the driver: ", why, largest));
  }
  std::string DriverSays() const {
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
      cudaGetLastError();
      return "the driver has no more";
    }
    return StrCat("the driver has ", Megabytes(static_cast<int64_t>(free)), " of ",
                  Megabytes(static_cast<int64_t>(total)), " left");
  }

  mutable std::mutex mutex_;
  const Device device_;
  AllocatorStats stats_;
  int64_t limit_ = 0;

 private:
  const std::optional<uint64_t> poison_;
  std::unordered_map<void*, int64_t> live_;  // bytes requested
};

// Set by TrimAtExit: nothing is cached from then on.
std::atomic<bool> at_exit = false;

class CachingAllocator : public StatsAllocator {
 public:
  using StatsAllocator::StatsAllocator;

  void* Allocate(int64_t bytes, Stream stream) override {
    std::lock_guard lock(mutex_);
    CheckRequest(bytes);
    if (bytes == 0) return nullptr;
    const int64_t size = BlockPool::BlockSize(bytes);
    const PoolKey key{stream.handle.get(), BlockPool::IsSmall(size)};
    BlockPool& pool = pools_.try_emplace(key, key.small).first->second;
    BlockPool::Block* block = pool.Take(size);
    if (block == nullptr) {
      bool more = AddSegment(pool, BlockPool::SegmentSize(size));
      if (!more) {
        TrimLocked();
        more = AddSegment(pool, BlockPool::RoundToPages(size));
      }
      if (!more) {
        const char* const captures = Graph::CapturesOn(device_)
                                         ? "; the free memory of other streams cannot be reclaimed "
                                           "while a CUDA graph is captured"
                                         : "";
        ThrowOutOfMemory(bytes, DriverSays() + captures);
      }
      block = pool.Take(size);
    }
    used_[block->data] = {block, &pool};
    CountAllocation(block->data, bytes);
    Poison(block->data, block->bytes, stream);  // with what rounding adds, for reads beyond the end
    return block->data;
  }

  void Free(void* data, int64_t, const Stream&) noexcept override {
    if (data == nullptr) return;
    std::lock_guard lock(mutex_);
    if (!CountFree(data)) return;
    const auto [block, pool] = used_.extract(data).mapped();
    pool->Give(block);
    NotePeak();  // of held memory, with what rounding had added
    if (at_exit) TrimLocked();
  }

  void Trim() override {
    std::lock_guard lock(mutex_);
    TrimLocked();
  }

  AllocatorStats stats() const override {
    std::lock_guard lock(mutex_);
    AllocatorStats stats = stats_;
    stats.live_bytes += HeldBytes();
    return stats;
  }

  // From now on, the stream keeps its free memory.
  void Hold(const Stream& stream) {
    std::lock_guard lock(mutex_);
    held_.insert(stream.handle.get());
    NotePeak();
  }
  // Ends Hold, and returns the stream's free memory to the driver.
  void Release(const Stream& stream) {
    std::lock_guard lock(mutex_);
    held_.erase(stream.handle.get());
    TrimLocked(&stream);
  }

 private:
  // That of graphs, even while none of them runs.
  int64_t HeldBytes() const override {
    int64_t bytes = 0;
    if (held_.empty()) return bytes;
    for (const auto& [key, pool] : pools_) {
      if (held_.contains(key.stream)) bytes += pool.free_bytes();
    }
    return bytes;
  }

  // Blocks are reused only within their pool.
  struct PoolKey {
    void* stream;
    bool small;
    auto operator<=>(const PoolKey&) const = default;
  };

  bool AddSegment(BlockPool& pool, int64_t bytes) {
    SetDevice(device_);
    void* data = FromDriver([&](void** to) { return cudaMalloc(to, static_cast<size_t>(bytes)); });
    if (data == nullptr) return false;
    stats_.reserved_bytes += bytes;
    pool.AddSegment(static_cast<char*>(data), bytes);
    return true;
  }

  // Returns whole segments to the driver, those of all streams or of one. Does nothing during a
  // capture, which waiting for the device would invalidate, or if the device has failed.
  void TrimLocked(const Stream* of = nullptr) noexcept {
    if (pools_.empty() || Graph::CapturesOn(device_)) return;
    if (!Succeeds(cudaSetDevice(device_.index)) || !Succeeds(cudaDeviceSynchronize())) return;
    for (auto& [key, pool] : pools_) {
      if (held_.contains(key.stream)) continue;
      if (of != nullptr && of->handle.get() != key.stream) continue;
      pool.RemoveFreeSegments([this](char* data, int64_t bytes) {
        LS_CUDA_WARN(cudaFree(data));
        stats_.reserved_bytes -= bytes;
      });
    }
  }

  static bool Succeeds(cudaError_t code) {
    if (code != cudaSuccess) cudaGetLastError();
    return code == cudaSuccess;
  }

  std::map<PoolKey, BlockPool> pools_;
  std::set<void*> held_;  // streams
  std::unordered_map<void*, std::pair<BlockPool::Block*, BlockPool*>> used_;
};

// Every tensor's memory comes straight from the driver, with exactly its size, and goes back there:
// so that the simulator and compute-sanitizer see every access outside of it and every read of
// unwritten bytes.
class DirectAllocator : public StatsAllocator {
 public:
  using StatsAllocator::StatsAllocator;

  void* Allocate(int64_t bytes, Stream stream) override {
    std::lock_guard lock(mutex_);
    CheckRequest(bytes);
    if (bytes == 0) return nullptr;
    SetDevice(device_);
    void* data = FromDriver([&](void** to) {
      return cudaMallocAsync(to, static_cast<size_t>(bytes),
                             static_cast<cudaStream_t>(stream.handle.get()));
    });
    if (data == nullptr) ThrowOutOfMemory(bytes, DriverSays());
    stats_.reserved_bytes += bytes;
    CountAllocation(data, bytes);
    Poison(data, bytes, stream);
    return data;
  }

  void Free(void* data, int64_t bytes, const Stream& stream) noexcept override {
    if (data == nullptr) return;
    std::lock_guard lock(mutex_);
    if (!CountFree(data)) return;
    stats_.reserved_bytes -= bytes;
    // This fails only if the device has already failed.
    LS_CUDA_WARN(cudaSetDevice(device_.index));
    LS_CUDA_WARN(cudaFreeAsync(data, static_cast<cudaStream_t>(stream.handle.get())));
  }

  void Trim() override {}
};

bool UseDirectAllocator() {
  if (const char* text = std::getenv("LOCKSTEP_CUDA_ALLOCATOR")) {
    const std::string name = text;
    if (name == "none") return true;
    LS_CHECK(name == "caching", "LOCKSTEP_CUDA_ALLOCATOR=", name, " must be caching or none");
    return false;
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

CachingAllocator* CacheOf(Device device) {
  return dynamic_cast<CachingAllocator*>(&GetAllocator(device));
}

// Cached memory at the end of a process, and static tensors that are freed later, are no leaks: the
// simulator, which looks for leaks, must not see them. A real driver reclaims everything by itself,
// and may be gone by then.
void TrimAtExit() {
  at_exit = true;
  for (int i = 0; i < DeviceCount(); ++i) GetAllocator({DeviceType::kCuda, i}).Trim();
}

[[maybe_unused]] const bool registered = [] {
  RegisterAllocator(DeviceType::kCuda, [](Device device) -> std::unique_ptr<Allocator> {
    LS_CHECK(device.index < DeviceCount(), "there is no device ", device, "; this process sees ",
             DeviceCount());
    const std::optional<uint64_t> poison = PoisonSeed();
    if (UseDirectAllocator()) return std::make_unique<DirectAllocator>(device, poison);
    static const bool trims = Simulated() && std::atexit(TrimAtExit) == 0;
    static_cast<void>(trims);
    return std::make_unique<CachingAllocator>(device, poison);
  });
  return true;
}();

}  // namespace

std::string GraphSpace::WhyNot(Device device) {
  if (!device.is_cuda()) return StrCat(device, " is no GPU");
  if (SynchronousLaunches()) return "each kernel is waited for (LOCKSTEP_CUDA_SYNC)";
  if (CacheOf(device) != nullptr) return "";
  return "every tensor's memory comes from the driver (LOCKSTEP_CUDA_ALLOCATOR, or a sanitizer)";
}

GraphSpace::GraphSpace(Device device) : stream_(device) {
  const std::string why = WhyNot(device);
  LS_CHECK(why.empty(), "CUDA graphs cannot be captured on ", device, ": ", why);
  CacheOf(device)->Hold(stream_);
}

GraphSpace::~GraphSpace() { CacheOf(stream_.get().device)->Release(stream_); }

}  // namespace lockstep::cuda
