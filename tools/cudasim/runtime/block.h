// The table of the memory blocks known to CUDA: device, managed, pinned and registered memory.
#ifndef CUDASIM_RUNTIME_BLOCK_H_
#define CUDASIM_RUNTIME_BLOCK_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "cudasim/runtime_types.h"
#include "site.h"

struct CUmemPoolHandle_st;

namespace cudasim::runtime {

enum class BlockKind { kDevice, kManaged, kPinned, kRegistered };

// One use of memory by a stream's operation, for the check that uses are ordered (ordering.cc).
struct Use {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool write = false;
  uint64_t stream = 0;
  uint64_t tick = 0;
  std::string what;
};

struct Block {
  BlockKind kind = BlockKind::kDevice;
  int device = 0;
  uintptr_t begin = 0;
  size_t size = 0;
  unsigned flags = 0;
  Site allocated;
  // Set when the memory is freed (for stream-ordered memory: when that is enqueued).
  bool freed = false;
  Site freed_at;
  bool permanent = false;              // It lives as long as the process: no leak.
  CUmemPoolHandle_st* pool = nullptr;  // For stream-ordered memory.
  std::vector<Use> uses;
  // Set by address_space.cc.
  uintptr_t mapping = 0;
  size_t mapping_size = 0;

  uintptr_t end() const { return begin + size; }
  bool contains(uintptr_t address) const { return address >= begin && address < begin + size; }
};

// All of these functions need the lock of state.h.

// The live block that contains [address, address + size), or null. An empty range may be at a
// block's end.
std::shared_ptr<Block> FindBlock(const void* address, size_t size = 1);
// The live or recently freed block that contains the address, or whose guard pages do.
std::shared_ptr<Block> FindNear(uintptr_t address);
// The freed block at this address, if that has not been reused since; null under AddressSanitizer.
std::shared_ptr<Block> FindFreed(const void* address);
// Call this when the addresses of a freed block may be in use again.
void ForgetFreed(uintptr_t begin);
std::vector<std::shared_ptr<Block>> LiveBlocks();
void AddBlock(std::shared_ptr<Block> block);
// Removes a block; freed device memory is remembered for a while, for reports.
void RemoveBlock(const std::shared_ptr<Block>& block);
// Grows with each of the two, from 1 on. Needs no lock.
const std::atomic<uint64_t>& MemoryChanges();

// "device memory 0x... of 1024 bytes on device 0".
std::string Describe(const Block& block);
// Where an address is relative to the block: "12 bytes after ", "at byte 3 of ".
std::string Position(const Block& block, uintptr_t address);
// What Describe says, and where it was allocated and freed.
std::string DescribeWithSites(const Block& block);

// Backs a block of `size` bytes with fresh memory that reads as NaN in every floating type, begins
// at a multiple of 256 (device memory: of CUDASIM_ALIGNMENT) and has guard pages around it. False
// if the host is out of memory.
bool MapBlock(Block* block);
// Frees the memory; later accesses fault. Describes what was overwritten around it, if anything.
std::string UnmapBlock(Block* block);
// For signal handlers: restores the access rights of the thread's DeviceAccess.
void RestoreAccess();
// Installs the handler that explains faults at the addresses of blocks.
void InstallFaultHandler();

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_BLOCK_H_
