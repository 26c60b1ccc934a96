#include "core/cuda/block_pool.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

namespace lockstep::cuda {
namespace {

using Block = BlockPool::Block;

TEST(BlockPool, SizesAreRoundedByAtMostAnEighth) {
  for (int64_t bytes : {1, 511, 512, 513, 5000, 1 << 20, (1 << 20) + 1, 100'000'001}) {
    const int64_t size = BlockPool::BlockSize(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_LE(size - bytes, std::max<int64_t>(512, bytes / 8)) << bytes;
    EXPECT_EQ(BlockPool::BlockSize(size), size) << bytes;
    EXPECT_GE(BlockPool::SegmentSize(size), size);
    EXPECT_GE(BlockPool::RoundToPages(size), size);
    EXPECT_EQ(BlockPool::RoundToPages(size) % (2 << 20), 0);
  }
  EXPECT_TRUE(BlockPool::IsSmall(1 << 20));
  EXPECT_FALSE(BlockPool::IsSmall((1 << 20) + 512));
}

TEST(BlockPool, ThereIsNothingWithoutASegment) {
  BlockPool pool(/*small=*/false);
  EXPECT_EQ(pool.Take(4 << 20), nullptr);
  pool.AddSegment(reinterpret_cast<char*>(1 << 20), 4 << 20);
  EXPECT_EQ(pool.Take(6 << 20), nullptr);
  Block* block = pool.Take(4 << 20);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(pool.free_bytes(), 0);
  pool.Give(block);
}

TEST(BlockPool, TheSmallestThatFitsAtTheLowestAddress) {
  BlockPool pool(/*small=*/true);
  char* const base = reinterpret_cast<char*>(1 << 20);
  for (const auto& [at, bytes] : {std::pair(0, 4096), {100'000, 2048}, {200'000, 2048}}) {
    pool.AddSegment(base + at, bytes);
  }
  Block* const first = pool.Take(2048);
  Block* const second = pool.Take(2048);
  Block* const third = pool.Take(1024);
  EXPECT_EQ(first->data, base + 100'000);
  EXPECT_EQ(second->data, base + 200'000);
  EXPECT_EQ(third->data, base);
  EXPECT_EQ(third->bytes, 1024) << "the rest stays free";
  EXPECT_EQ(pool.free_bytes(), 3072);
  for (Block* block : {first, second, third}) pool.Give(block);
}

// Blocks lie in segments and do not overlap; what is free and what is taken are the segments; at
// the end every segment is whole again.
TEST(BlockPool, RandomBlocksTileTheSegments) {
  for (const bool small : {true, false}) {
    std::mt19937 random(small ? 1 : 2);
    BlockPool pool(small);
    std::map<char*, int64_t> segments;  // begin: bytes
    std::map<char*, Block*> taken;
    int64_t all = 0, used = 0;
    for (int i = 0; i < 4000; ++i) {
      const bool gives = taken.size() > 60 || (!taken.empty() && random() % 2 == 0);
      if (gives) {
        auto it = taken.begin();
        std::advance(it, random() % taken.size());
        used -= it->second->bytes;
        pool.Give(it->second);
        taken.erase(it);
      } else {
        const int64_t size = BlockPool::BlockSize(small ? 1 + random() % 400'000
                                                        : (1 << 20) + 1 + random() % 30'000'000);
        Block* block = pool.Take(size);
        if (block == nullptr) {
          const int64_t bytes = BlockPool::SegmentSize(size);
          char* const at = reinterpret_cast<char*>((all + 1) * 2);
          pool.AddSegment(at, bytes);
          segments[at] = bytes;
          all += bytes;
          block = pool.Take(size);
          ASSERT_NE(block, nullptr);
        }
        ASSERT_GE(block->bytes, size);
        const auto segment = std::prev(segments.upper_bound(block->data));
        ASSERT_LE(block->data + block->bytes, segment->first + segment->second);
        const auto next = taken.lower_bound(block->data);
        ASSERT_TRUE(next == taken.end() || block->data + block->bytes <= next->first);
        if (next != taken.begin()) {
          const Block* before = std::prev(next)->second;
          ASSERT_LE(before->data + before->bytes, block->data);
        }
        taken[block->data] = block;
        used += block->bytes;
      }
      ASSERT_EQ(pool.free_bytes() + used, all);
    }
    pool.RemoveFreeSegments([&](char* data, int64_t bytes) {
      EXPECT_EQ(segments.at(data), bytes);
      segments.erase(data);
    });
    for (const auto& [data, block] : taken) pool.Give(block);
    pool.RemoveFreeSegments([&](char* data, int64_t bytes) {
      EXPECT_EQ(segments.at(data), bytes);
      segments.erase(data);
    });
    EXPECT_TRUE(segments.empty());
    EXPECT_EQ(pool.free_bytes(), 0);
  }
}

}  // namespace
}  // namespace lockstep::cuda
