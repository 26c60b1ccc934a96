// How a GPU's caching allocator cuts segments of the driver's memory into blocks: the bookkeeping
// without the driver, so that memory can be planned with it.
#pragma once

#include <cstdint>
#include <set>

namespace lockstep::cuda {

// Blocks of small sizes, or of large ones, for work on one stream. Freed blocks are joined with
// free neighbours in their segment. Not thread-safe.
class BlockPool {
 public:
  struct Block {
    char* data;
    int64_t bytes;
    bool free = false;
    Block *previous = nullptr, *next = nullptr;  // neighbours in the segment
  };

  // Eight sizes per power of two, but steps of at most a page: requests of similar size can reuse
  // each other's blocks.
  static int64_t BlockSize(int64_t bytes);
  // The size of the segment that is taken for a block of this size.
  static int64_t SegmentSize(int64_t block);
  // The smallest segment for it: of whole pages of the driver.
  static int64_t RoundToPages(int64_t block);
  // Whether such a block is of the small ones.
  static bool IsSmall(int64_t block);

  explicit BlockPool(bool small) : small_(small) {}
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  // Blocks that were taken and not given back are forgotten.
  ~BlockPool();

  // A free block of this size: the smallest that is large enough, at the lowest address among
  // equals, so that repeated steps get the same memory; what is left of it stays free. Returns null
  // if there is none: AddSegment must come first.
  Block* Take(int64_t size);
  // Adds free memory.
  void AddSegment(char* data, int64_t bytes);
  void Give(Block* block);
  // Calls f(data, bytes) for the segments that are free as a whole, and forgets them.
  template <class F>
  void RemoveFreeSegments(const F& f) {
    for (auto it = free_.begin(); it != free_.end();) {
      Block* block = *it;
      if (block->previous != nullptr || block->next != nullptr) {
        ++it;
        continue;
      }
      it = free_.erase(it);
      f(block->data, block->bytes);
      delete block;
    }
  }
  int64_t free_bytes() const;

 private:
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->bytes != b->bytes ? a->bytes < b->bytes : a->data < b->data;
    }
  };
  void JoinWithNext(Block* block);

  const bool small_;
  std::set<Block*, BySize> free_;
};

}  // namespace lockstep::cuda
