#include "data/loader.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>

#include "core/error.h"
#include "data/evaluation.h"
#include "tests/data/data_test_util.h"

namespace {
std::atomic<int64_t> allocations{0};
}

// Counts the allocations of every thread.
void* operator new(size_t size) {
  ++allocations;
  if (void* pointer = std::malloc(size)) return pointer;
  throw std::bad_alloc();
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, size_t) noexcept { std::free(pointer); }

namespace lockstep::data {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const TokenSource> Counting(int64_t n) {
  std::vector<int32_t> tokens(n);
  for (int64_t i = 0; i < n; ++i) tokens[i] = static_cast<int32_t>(i);
  return std::make_shared<MemoryTokens>(tokens);
}

// Of its tokens 0, 1, 2, ... the model learns every third.
class EveryThird : public MemoryTokens {
 public:
  explicit EveryThird(int64_t n) : MemoryTokens(All(*Counting(n))) {}
  bool has_documents() const override { return true; }
  bool has_loss_mask() const override { return true; }

 private:
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override {
    for (int32_t& learnt : out) learnt = offset++ % 3 == 0 ? 1 : 0;
  }
};

TEST(BatchTest, OnlyTokensThatAreLearntAreTargets) {
  const auto source = std::make_shared<EveryThird>(4000);
  Batch batch;
  ReadBatch(*source, std::vector<int64_t>{0, 7, 3997}, 4, &batch);
  EXPECT_THAT(batch.inputs, ElementsAre(0, 1, 2, 3, 7, 8, 9, 10, 3997, 3998, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(-1, -1, 3, -1, -1, 9, -1, -1, -1, 3999, -1, -1));
  EXPECT_EQ(batch.num_targets, 3);
  ReadBatch(*source, std::vector<int64_t>{1}, 3000, &batch);  // longer than pieces that are read
  EXPECT_EQ(batch.num_targets, 1000);
  EXPECT_EQ(source->CountLearnt(1, 3000), 1000);
  EXPECT_EQ(Counting(4000)->CountLearnt(1, 3000), 3000);
  // The same through sources made of others.
  const TokenSlice slice(source, 5, 100);
  const TokenConcatenation both({Counting(4), source});
  EXPECT_TRUE(slice.has_loss_mask() && both.has_loss_mask());
  EXPECT_EQ(slice.CountLearnt(0, 5), 2);
  EXPECT_EQ(both.CountLearnt(2, 6), 2 + 2);
  const EvalBatches evaluation(source, 16, 4);
  EXPECT_EQ(evaluation.num_targets(), 1333);
}

TEST(BatchTest, TargetsAreInputsShiftedByOne) {
  Batch batch;
  ReadBatch(*Counting(100), std::vector<int64_t>{7, 95}, 4, &batch);
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.cols, 4);
  EXPECT_EQ(batch.num_targets, 8);
  EXPECT_THAT(batch.inputs, ElementsAre(7, 8, 9, 10, 95, 96, 97, 98));
  EXPECT_THAT(batch.targets, ElementsAre(8, 9, 10, 11, 96, 97, 98, 99));
}

TEST(BatchTest, WindowsAtTheEndAreFilledUp) {
  Batch batch;
  ReadBatch(*Counting(10), std::vector<int64_t>{7, 8, 9, 10, 40}, 3, &batch);
  EXPECT_THAT(batch.inputs, ElementsAre(7, 8, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.targets, ElementsAre(8, 9, -1, 9, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_EQ(batch.num_targets, 3);
}

// Each token but the first is a target once, with the previous token as input.
TEST(EvalBatchesTest, CoverTheStreamExactlyOnce) {
  for (int64_t n = 2; n <= 60; ++n) {
    for (const int64_t block : {1, 4, 7}) {
      for (const int64_t rows : {1, 3}) {
        const EvalBatches batches(Counting(n), block, rows);
        std::vector<int32_t> targets;
        int64_t num_targets = 0;
        Batch batch;
        for (int64_t b = 0; b < batches.size(); ++b) {
          batches.Read(b, &batch);
          ASSERT_EQ(batch.step, b);
          ASSERT_EQ(static_cast<int64_t>(batch.targets.size()), rows * block);
          ASSERT_GT(batch.num_targets, 0);
          num_targets += batch.num_targets;
          for (int64_t i = 0; i < rows * block; ++i) {
            if (batch.targets[i] == kIgnoreIndex) continue;
            ASSERT_EQ(batch.inputs[i], batch.targets[i] - 1);
            targets.push_back(batch.targets[i]);
          }
        }
        ASSERT_EQ(num_targets, n - 1);
        ASSERT_EQ(batches.num_targets(), n - 1);
        ASSERT_EQ(static_cast<int64_t>(targets.size()), n - 1);
        for (int64_t i = 0; i < n - 1; ++i) ASSERT_EQ(targets[i], i + 1);
      }
    }
  }
}

TEST(EvalBatchesTest, ALimitKeepsBatchesSpreadOverTheStream) {
  const EvalBatches all(Counting(1000), 5, 4);  // 50 batches, the last one short
  ASSERT_EQ(all.size(), 50);
  const EvalBatches some(Counting(1000), 5, 4, 10);
  ASSERT_EQ(some.size(), 10);
  Batch expected, batch;
  int64_t num_targets = 0;
  for (int64_t b = 0; b < 10; ++b) {
    all.Read(5 * b, &expected);
    some.Read(b, &batch);
    EXPECT_EQ(batch.targets, expected.targets);
    num_targets += batch.num_targets;
  }
  EXPECT_EQ(some.num_targets(), num_targets);
  EXPECT_EQ(EvalBatches(Counting(1000), 5, 4, 80).size(), 50);
  EXPECT_THROW(some.Read(10, &batch), ArgumentError);
  EXPECT_THROW(some.Read(-1, &batch), ArgumentError);
  EXPECT_THAT(MessageOf<ArgumentError>([] { EvalBatches(Counting(1), 5, 4); }),
              HasSubstr("needs at least 2 tokens"));
}

// What the loader must return, read without a thread.
Batch Direct(const TokenSource& source, const Sampler& sampler, const BatchLayout& layout,
             int64_t step, int64_t micro_batch) {
  std::vector<int64_t> starts(layout.batch_size);
  sampler.WindowStarts(layout.FirstSample(step, micro_batch), starts);
  Batch batch;
  ReadBatch(source, starts, sampler.block_size(), &batch);
  return batch;
}

// The order of micro-batches, and who reads them, affect when a batch comes, but never its
// contents.
TEST(LoaderTest, SomeMicroBatchesMayComeInAnyOrder) {
  const auto source = Counting(200);
  const Sampler sampler(Order::kShuffled, 3, 200, 5);
  const BatchLayout plain{.batch_size = 2, .micro_batches = 5};
  for (const std::vector<int64_t>& order :
       {std::vector<int64_t>{0, 2, 1, 4, 3}, {4, 0}, {3}, {1, 2, 3}}) {
    BatchLayout reordered = plain;
    reordered.micro_order = order;
    Loader as_they_stand(source, sampler, plain, 6), loader(source, sampler, reordered, 6);
    for (int64_t step = 6; step < 9; ++step) {
      std::vector<Batch> batches;
      for (int i = 0; i < 5; ++i) batches.push_back(as_they_stand.Next());
      for (const int64_t m : order) {
        const Batch& batch = loader.Next();
        EXPECT_EQ(batch.step, step);
        EXPECT_EQ(batch.micro_batch, m);
        EXPECT_EQ(batch.inputs, batches[m].inputs);
      }
    }
  }
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{0, 1, 1}, {5}, {-1, 0}}) {
    BatchLayout layout = plain;
    layout.micro_order = wrong;
    EXPECT_THROW(layout.Check(), ArgumentError);
  }
}

TEST(LoaderTest, GivesTheBatchesOfTheSamplerInOrderFromAnyStep) {
  const auto source = Counting(2003);
  for (const Order order : {Order::kShuffled, Order::kRandom, Order::kSequential}) {
    const Sampler sampler(order, 3, source->size(), 16);
    for (const BatchLayout& layout : {BatchLayout{1, 1}, BatchLayout{5, 3}}) {
      for (const int64_t start : {0, 1, 17, 1000000}) {
        for (const int prefetch : {1, 4}) {
          Loader loader(source, sampler, layout, start, prefetch);
          for (int64_t step = start; step < start + 20; ++step) {
            for (int64_t micro = 0; micro < layout.micro_batches; ++micro) {
              const Batch& batch = loader.Next();
              const Batch expected = Direct(*source, sampler, layout, step, micro);
              ASSERT_EQ(batch.step, step);
              ASSERT_EQ(batch.micro_batch, micro);
              ASSERT_EQ(batch.inputs, expected.inputs);
              ASSERT_EQ(batch.targets, expected.targets);
              ASSERT_EQ(batch.num_targets, layout.batch_size * 16);
            }
          }
        }
      }
    }
  }
}

// All ranks together see an epoch's windows exactly once.
TEST(LoaderTest, RanksShareAnEpochWithoutOverlap) {
  const auto source = Counting(961);  // 60 windows of 16
  const Sampler sampler(Order::kShuffled, 3, source->size(), 16);
  std::vector<int> seen(60);
  for (int64_t rank = 0; rank < 3; ++rank) {
    Loader loader(source, sampler,
                  {.batch_size = 2, .micro_batches = 6, .micro_order = {rank, rank + 3}});
    for (int i = 0; i < 10; ++i) {
      const Batch& batch = loader.Next();
      for (int64_t row = 0; row < 2; ++row) ++seen[batch.inputs[row * 16] / 16];
    }
  }
  EXPECT_THAT(seen, Each(1));
}

// A slow reader of the batch must never see it change: the thread must not run into the slot in
// use.
TEST(LoaderTest, ABatchStaysUntilTheNextCall) {
  const auto source = Counting(5000);
  const Sampler sampler(Order::kShuffled, 4, source->size(), 8);
  Loader loader(source, sampler, {2, 1}, 0, 2);
  for (int64_t step = 0; step < 20; ++step) {
    const Batch& batch = loader.Next();
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    EXPECT_EQ(batch.inputs, Direct(*source, sampler, {2, 1}, step, 0).inputs);
  }
}

TEST(LoaderTest, AllocatesNothingInSteadyState) {
  const Sampler sampler(Order::kShuffled, 4, 5000, 8);
  for (const std::shared_ptr<const TokenSource>& source :
       {std::shared_ptr<const TokenSource>(
            std::make_shared<SeparatedTokens>(Counting(5000), 7, Separator::kLast)),
        std::shared_ptr<const TokenSource>(std::make_shared<EveryThird>(5000))}) {
    for (const bool document_mask : {false, true}) {
      Loader loader(source, sampler, {4, 2, {}, document_mask});
      for (int i = 0; i < 20; ++i) loader.Next();
      const int64_t before = allocations;
      ASSERT_GT(before, 0);
      for (int i = 0; i < 2000; ++i) loader.Next();
      EXPECT_EQ(allocations, before);
    }
  }
}

// Fails from a given token on, as a disk might.
class FailingSource : public TokenSource {
 public:
  FailingSource(int64_t size, int64_t bad) : size_(size), bad_(bad) {}
  int64_t size() const override { return size_; }

 private:
  void DoRead(int64_t offset, std::span<int32_t> out) const override {
    if (offset + static_cast<int64_t>(out.size()) > bad_) throw IoError("the disk is gone");
    std::ranges::fill(out, 1);
  }
  int64_t size_;
  int64_t bad_;
};

TEST(LoaderTest, ErrorsComeAfterTheBatchesBeforeThemAndStay) {
  const auto source = std::make_shared<FailingSource>(1000, 55);
  Loader loader(source, Sampler(Order::kSequential, 1, 1000, 10), {1, 1});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(loader.Next().step, i);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(MessageOf<IoError>([&] { loader.Next(); }), "the disk is gone");
  }
}

TEST(LoaderTest, EndsWhateverItsThreadIsDoing) {
  const auto source = Counting(1000);
  const Sampler sampler(Order::kShuffled, 1, 1000, 10);
  for (int i = 0; i < 100; ++i) {
    Loader loader(source, sampler, {1, 1}, 0, 1 + i % 3);
    for (int j = i % 5; j > 0; --j) loader.Next();
  }
  Loader failed(std::make_shared<FailingSource>(1000, 0), sampler, {1, 1});
}

TEST(LoaderTest, ChecksItsArguments) {
  const Sampler sampler(Order::kShuffled, 1, 1000, 10);
  EXPECT_THAT(MessageOf<ArgumentError>([&] {
                Loader(Counting(999), sampler, {1, 1});
              }),
              HasSubstr("1000 tokens, but the source has 999"));
  EXPECT_THROW(Loader(Counting(1000), sampler, {1, 2, {2}}), ArgumentError);
  EXPECT_THROW(Loader(Counting(1000), sampler, {1, 1}, -1), ArgumentError);
  EXPECT_THROW(Loader(Counting(1000), sampler, {1, 1}, 0, 0), ArgumentError);
}

}  // namespace
}  // namespace lockstep::data
