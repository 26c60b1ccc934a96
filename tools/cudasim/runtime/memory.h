// Allocation of blocks, shared by memory.cc and pool.cc. All need the lock.
#ifndef CUDASIM_RUNTIME_MEMORY_H_
#define CUDASIM_RUNTIME_MEMORY_H_

#include <memory>
#include <string>

#include "state.h"

namespace cudasim::runtime {

// What a block of `size` bytes takes from its device's memory.
size_t Charge(size_t size);

// Null: the device's memory (or the machine's) does not suffice.
std::shared_ptr<Block> Allocate(const Lock&, BlockKind kind, int device, size_t size);

// Gives the memory back. The result: damage that writes out of bounds have done, or nothing.
std::string Release(const Lock&, const std::shared_ptr<Block>& block);

// What is wrong with freeing `pointer`, if it is known; it is not the beginning of a live block.
std::string FreeMistake(const Lock&, const void* pointer);

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_MEMORY_H_
