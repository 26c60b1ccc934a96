// A device's memory: live and peak bytes, a limit, and an error that says what to do.
#pragma once

#include <cstdint>
#include <memory>

#include "core/stream.h"

namespace lockstep {

struct AllocatorStats {
  int64_t live_bytes = 0;          // handed out and not yet freed, as requested (not rounded)
  int64_t peak_bytes = 0;          // largest live_bytes since the start or the last ResetPeak
  int64_t reserved_bytes = 0;      // taken from the system: live, rounding and cache
  int64_t allocations = 0;         // calls of Allocate since the start
  int64_t system_allocations = 0;  // those served by the system instead of the cache
};

class Allocator {
 public:
  virtual ~Allocator() = default;
  // At least `bytes` bytes, aligned to 64, usable by work submitted to `stream`. bytes = 0 gives
  // null. Throws OutOfMemoryError.
  virtual void* Allocate(int64_t bytes, Stream stream) = 0;
  // `bytes` and `stream` as given to Allocate. The memory may be handed out again to work on
  // `stream`. Never throws, whatever state the device is in.
  virtual void Free(void* data, int64_t bytes, const Stream& stream) noexcept = 0;
  virtual AllocatorStats stats() const = 0;
  virtual void ResetPeak() = 0;
  // Returns cached memory to the system.
  virtual void Trim() = 0;
  // Largest live_bytes allowed; 0 = no limit.
  virtual void SetLimit(int64_t bytes) = 0;
};

// The allocator of a device; throws ArgumentError when the build has none for it.
Allocator& GetAllocator(Device device);
using AllocatorFactory = std::unique_ptr<Allocator> (*)(Device device);
void RegisterAllocator(DeviceType type, AllocatorFactory factory);

}  // namespace lockstep
