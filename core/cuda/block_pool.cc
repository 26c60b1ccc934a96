#include "core/cuda/block_pool.h"

#include <algorithm>
#include <bit>

#include "core/round_up.h"

namespace lockstep::cuda {
namespace {

constexpr int64_t kAlignment = 512;
constexpr int64_t kSmall = 1 << 20;  // blocks up to this size come from small segments
constexpr int64_t kSmallSegment = 2 << 20;
constexpr int64_t kLargeSegment = 20 << 20;     // for blocks up to half its size
constexpr int64_t kSegmentAlignment = 2 << 20;  // the driver's page

}  // namespace

int64_t BlockPool::BlockSize(int64_t bytes) {
  const int64_t power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  return RoundUp(bytes, std::clamp(power / 8, kAlignment, kSegmentAlignment));
}

int64_t BlockPool::SegmentSize(int64_t block) {
  if (block <= kSmall) return kSmallSegment;
  return block <= kLargeSegment / 2 ? kLargeSegment : RoundToPages(block);
}

int64_t BlockPool::RoundToPages(int64_t block) { return RoundUp(block, kSegmentAlignment); }

bool BlockPool::IsSmall(int64_t block) { return block <= kSmall; }

BlockPool::~BlockPool() {
  for (Block* block : free_) delete block;
}

BlockPool::Block* BlockPool::Take(int64_t size) {
  Block key{nullptr, size};
  const auto it = free_.lower_bound(&key);
  if (it == free_.end()) return nullptr;
  Block* block = *it;
  free_.erase(it);
  block->free = false;
  // Splits off the bytes beyond `size`, if they are worth a block of their own.
  const int64_t rest = block->bytes - size;
  if (rest < (small_ ? kAlignment : kSmall)) return block;
  auto* tail = new Block{block->data + size, rest, true, block, block->next};
  if (tail->next != nullptr) tail->next->previous = tail;
  block->next = tail;
  block->bytes = size;
  free_.insert(tail);
  return block;
}

void BlockPool::AddSegment(char* data, int64_t bytes) {
  free_.insert(new Block{data, bytes, /*free=*/true});
}

void BlockPool::Give(Block* block) {
  if (block->next != nullptr && block->next->free) JoinWithNext(block);
  if (block->previous != nullptr && block->previous->free) {
    block = block->previous;
    free_.erase(block);
    JoinWithNext(block);
  }
  block->free = true;
  free_.insert(block);
}

// `block` is not in free_.
void BlockPool::JoinWithNext(Block* block) {
  Block* next = block->next;
  if (next->free) free_.erase(next);
  block->bytes += next->bytes;
  block->next = next->next;
  if (block->next != nullptr) block->next->previous = block;
  delete next;
}

int64_t BlockPool::free_bytes() const {
  int64_t bytes = 0;
  for (const Block* block : free_) bytes += block->bytes;
  return bytes;
}

}  // namespace lockstep::cuda
