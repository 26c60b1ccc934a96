// Allocation of blocks, shared by memory.cc and pool.cc. All functions need the lock.
#ifndef CUDASIM_RUNTIME_MEMORY_H_
#define CUDASIM_RUNTIME_MEMORY_H_

#include <memory>
#include <string>

#include "state.h"

namespace cudasim::runtime {

// How much of its device's memory a block of `size` bytes takes.
size_t Charge(size_t size);

// Null if the device's memory (or the host's) is not enough.
std::shared_ptr<Block> Allocate(const Lock&, BlockKind kind, int device, size_t size);

// Frees the memory. Describes the damage by writes out of bounds, if any.
std::string Release(const Lock&, const std::shared_ptr<Block>& block);

// What is wrong with freeing `pointer`, which is not the beginning of a live block, if known.
std::string FreeMistake(const Lock&, const void* pointer);

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_MEMORY_H_
