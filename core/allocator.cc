#include "core/allocator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/round_up.h"

namespace lockstep {
namespace {

// Sanitizers must see every allocation at its exact size; a cache would hide overruns.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kBypassCache = true;
#else
constexpr bool kBypassCache = false;
#endif

constexpr int64_t kAlignment = 64;  // as CpuSizeClass
constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kSegment = 32 << 20;
constexpr int64_t kMaxBytes = int64_t{1} << 60;  // below, rounding up cannot overflow

// Keeps freed blocks in one free list per size class, so that a steady training step takes nothing
// from the system.
//
// Blocks smaller than a huge page are cut from segments, so that they share huge pages: with small
// pages, most of what a step touches would miss the TLB. Trim returns a block's memory and keeps
// its addresses for the next block of that size class.
class CpuCachingAllocator : public Allocator {
 public:
  void* Allocate(int64_t bytes, Stream) override {
    LS_CHECK(bytes >= 0, "cannot allocate ", bytes, " bytes");
    if (bytes == 0) return nullptr;
    std::lock_guard lock(mutex_);
    if (limit_ > 0 && bytes > limit_ - stats_.live_bytes) {
      ThrowOutOfMemory(bytes, StrCat("the limit is ", limit_));
    }
    if (bytes > kMaxBytes) ThrowOutOfMemory(bytes, "more than any machine has");
    void* data = FromCache(bytes);
    if (data == nullptr) data = FromSystem(bytes);
    stats_.live_bytes += bytes;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
    ++stats_.allocations;
    return data;
  }

  void Free(void* data, int64_t bytes, const Stream&) noexcept override {
    if (data == nullptr) return;
    std::lock_guard lock(mutex_);
    stats_.live_bytes -= bytes;
    if (kBypassCache) {
      stats_.reserved_bytes -= bytes;
      std::free(data);
    } else {
      free_[CpuSizeClass(bytes)].push_back(data);
    }
  }

  AllocatorStats stats() const override {
    std::lock_guard lock(mutex_);
    return stats_;
  }

  void ResetPeak() override {
    std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.live_bytes;
  }

  void Trim() override {
    std::lock_guard lock(mutex_);
    TrimLocked();
  }

  void SetLimit(int64_t bytes) override {
    std::lock_guard lock(mutex_);
    limit_ = bytes;
  }

 private:
  void* FromCache(int64_t bytes) {
    auto it = free_.find(CpuSizeClass(bytes));
    if (it == free_.end() || it->second.empty()) return nullptr;
    void* data = it->second.back();
    it->second.pop_back();
    return data;
  }

  // `size` bytes for a request of `bytes`.
  void* Aligned(int64_t bytes, int64_t alignment, int64_t size) {
    void* data = nullptr;
    if (posix_memalign(&data, alignment, size) != 0) {
      TrimLocked();
      if (posix_memalign(&data, alignment, size) != 0) {
        ThrowOutOfMemory(bytes, "the system has no more");
      }
    }
    if (alignment == kHugePage) madvise(data, size, MADV_HUGEPAGE);
    return data;
  }

  void* FromSegment(int64_t bytes, int64_t size) {
    if (std::vector<void*>& blocks = returned_[size]; !blocks.empty()) {
      void* data = blocks.back();
      blocks.pop_back();
      return data;
    }
    if (segment_end_ - segment_ < size) {
      segment_ = static_cast<char*>(Aligned(bytes, kHugePage, kSegment));
      segment_end_ = segment_ + kSegment;
    }
    return std::exchange(segment_, segment_ + size);
  }

  void* FromSystem(int64_t bytes) {
    const int64_t size = kBypassCache ? bytes : CpuSizeClass(bytes);
    const int64_t alignment = !kBypassCache && size >= kHugePage ? kHugePage : kAlignment;
    const bool shares = !kBypassCache && size < kHugePage;
    void* data = shares ? FromSegment(bytes, size) : Aligned(bytes, alignment, size);
    // Reading uninitialised memory must show in sanitizer runs: all ones is a NaN in every float.
    if (kBypassCache) std::memset(data, 0xff, size);
    stats_.reserved_bytes += size;
    ++stats_.system_allocations;
    return data;
  }

  void TrimLocked() {
    for (auto& [size, blocks] : free_) {
      for (void* data : blocks) {
        if (size < kHugePage) {
          ReturnPages(static_cast<char*>(data), size);
          returned_[size].push_back(data);
        } else {
          std::free(data);
        }
      }
      stats_.reserved_bytes -= size * static_cast<int64_t>(blocks.size());
      blocks.clear();
    }
  }

  // Returns the pages that lie entirely within the block.
  static void ReturnPages(char* data, int64_t size) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }

  [[noreturn]] void ThrowOutOfMemory(int64_t bytes, const std::string& why) const {
    throw OutOfMemoryError(StrCat("out of memory on the CPU: ", bytes, " bytes requested, ",
                                  stats_.live_bytes, " live: ", why));
  }

  mutable std::mutex mutex_;
  std::unordered_map<int64_t, std::vector<void*>> free_;      // by size class
  std::unordered_map<int64_t, std::vector<void*>> returned_;  // addresses without memory
  char* segment_ = nullptr;                                   // the unused rest of the last one
  char* segment_end_ = nullptr;
  AllocatorStats stats_;
  int64_t limit_ = 0;
};

struct Registry {
  std::mutex mutex;
  std::array<AllocatorFactory, kNumDeviceTypes> factories{};
  std::array<std::vector<std::unique_ptr<Allocator>>, kNumDeviceTypes> allocators;
};

// Never destroyed: tensors with static storage may be freed after any static of ours.
Registry& GetRegistry() {
  static Registry& registry = *new Registry{.mutex = {},
                                            .factories = {[](Device) -> std::unique_ptr<Allocator> {
                                              return std::make_unique<CpuCachingAllocator>();
                                            }},
                                            .allocators = {}};
  return registry;
}

}  // namespace

Allocator& GetAllocator(Device device) {
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  const auto type = static_cast<size_t>(device.type);
  LS_CHECK(registry.factories[type] != nullptr, "this build cannot allocate on ", device);
  LS_CHECK(device.index >= 0, "negative device index in ", device);
  auto& list = registry.allocators[type];
  if (list.size() <= static_cast<size_t>(device.index)) list.resize(device.index + 1);
  if (!list[device.index]) list[device.index] = registry.factories[type](device);
  return *list[device.index];
}

void RegisterAllocator(DeviceType type, AllocatorFactory factory) {
  Registry& registry = GetRegistry();
  std::lock_guard lock(registry.mutex);
  registry.factories[static_cast<size_t>(type)] = factory;
}

}  // namespace lockstep
