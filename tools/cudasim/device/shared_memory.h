// The shared memory of the block that an OS thread runs.
#ifndef CUDASIM_DEVICE_SHARED_MEMORY_H_
#define CUDASIM_DEVICE_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cudasim/shared.h"

namespace cudasim {

// A Hopper block's limits: static shared memory, and static and dynamic together.
inline constexpr size_t kMaxStaticShared = 48 * 1024;
inline constexpr size_t kMaxShared = 227 * 1024;

class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  void BeginBlock(size_t dynamic_bytes);
  // A declaration's memory; the block's first call fills it with NaN.
  void* Static(SharedSite* site);
  void* Dynamic(size_t alignment, Where where);
  // Says which array's redzone was written to; empty if none.
  std::string EndBlock();

  // 227 KB, redzones, and rounding.
  static constexpr size_t kArenaBytes = 1 << 20;
  const char* begin() const { return memory_; }
  bool Contains(const void* p) const {
    return static_cast<size_t>(static_cast<const char*>(p) - memory_) < kArenaBytes;
  }
  // Whether all bytes belong to one array; otherwise sets `array` to the nearest one's name and
  // position.
  bool InBounds(const void* p, size_t bytes, std::string* array) const;
  // "values (256 bytes, declared at K.cu:7:3), offset 12".
  std::string Describe(const void* p) const;

 private:
  static constexpr size_t kRedzone = 64;

  struct Slot {
    uint64_t block = 0;  // the block for which it is valid
    char* data = nullptr;
  };
  struct Array {
    char* data;
    size_t bytes;
    const char* name;
    Where where;
  };

  char* Allocate(size_t bytes, size_t alignment, const char* name, Where where);

  char* memory_;
  uint64_t block_ = 0;
  size_t used_ = 0;
  size_t static_bytes_ = 0;
  size_t dynamic_bytes_ = 0;
  char* dynamic_ = nullptr;
  std::vector<Slot> slots_;    // by SharedSite::number
  std::vector<Array> arrays_;  // of this block
};

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_SHARED_MEMORY_H_
