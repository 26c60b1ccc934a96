#include "core/chunk_queue.h"

#include <gtest/gtest.h>

namespace lockstep::internal {
namespace {

void First(const void*, int64_t) {}
void Second(const void*, int64_t) {}

TEST(ChunkQueueTest, GivesEachChunkOnceAndInOrder) {
  ChunkQueue queue;
  EXPECT_FALSE(queue.Take());
  EXPECT_TRUE(queue.AllDone());
  const int context = 0;
  for (const uint32_t chunks : {3u, 1u, 7u}) {
    queue.Prepare(First, &context, chunks);
    queue.Publish();
    for (uint32_t i = 0; i < chunks; ++i) {
      const auto chunk = queue.Take();
      ASSERT_TRUE(chunk);
      EXPECT_EQ(chunk->function, First);
      EXPECT_EQ(chunk->context, &context);
      EXPECT_EQ(chunk->index, i);
      EXPECT_FALSE(queue.AllDone());
      queue.Done();
    }
    EXPECT_FALSE(queue.Take());
    EXPECT_TRUE(queue.AllDone());
  }
}

// A slow worker that came after the end of the last job sees the next job while it is being
// written. If it took a chunk, perhaps with the last job's context, the caller would wait forever:
// more chunks would be done than there are.
TEST(ChunkQueueTest, GivesNothingOfAJobThatIsNotPublishedYet) {
  ChunkQueue queue;
  queue.Prepare(First, nullptr, 2);
  queue.Publish();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(queue.Take());
    queue.Done();
  }
  queue.Prepare(Second, nullptr, 5);  // more than the last job had
  EXPECT_FALSE(queue.Take());
  queue.Publish();
  const auto chunk = queue.Take();
  ASSERT_TRUE(chunk);
  EXPECT_EQ(chunk->function, Second);
  EXPECT_EQ(chunk->index, 0);
}

}  // namespace
}  // namespace lockstep::internal
