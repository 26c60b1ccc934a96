#include "data/distributed_sampler.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/message_of.h"

namespace lockstep::data {
namespace {

using testing::HasSubstr;

std::vector<int64_t> Share(int64_t items, int64_t ranks, int64_t rank, int64_t epoch,
                           const DistributedSampler::Options& options) {
  const DistributedSampler sampler(items, ranks, rank, options);
  const auto order = sampler.epoch(epoch);
  std::vector<int64_t> share;
  for (int64_t i = 0; i < sampler.size(); ++i) share.push_back(order[i]);
  return share;
}

// How often each item is used in an epoch.
std::map<int64_t, int> Uses(int64_t items, int64_t ranks, int64_t epoch,
                            const DistributedSampler::Options& options) {
  std::map<int64_t, int> uses;
  for (int64_t r = 0; r < ranks; ++r) {
    for (const int64_t item : Share(items, ranks, r, epoch, options)) ++uses[item];
  }
  return uses;
}

class Cuts : public testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(Cuts, UnevenSharesAreDisjointAndComplete) {
  const auto [items, ranks] = GetParam();
  for (const bool shuffle : {false, true}) {
    const auto uses =
        Uses(items, ranks, 3, {.seed = 5, .shuffle = shuffle, .remainder = Remainder::kUneven});
    EXPECT_EQ(std::ssize(uses), items);
    for (const auto& [item, n] : uses) {
      EXPECT_TRUE(item >= 0 && item < items && n == 1) << item << " is used " << n << " times";
    }
  }
}

TEST_P(Cuts, PaddingUsesAFewTwiceAndDroppingLeavesAFewOut) {
  const auto [items, ranks] = GetParam();
  const int64_t missing = (ranks - items % ranks) % ranks;
  const auto padded = Uses(items, ranks, 1, {.seed = 5, .remainder = Remainder::kPad});
  int64_t extra = 0;
  for (const auto& [item, n] : padded) extra += n - 1;
  EXPECT_EQ(std::ssize(padded), items);
  EXPECT_EQ(extra, missing);
  if (items < ranks) return;
  const auto dropped = Uses(items, ranks, 1, {.seed = 5, .remainder = Remainder::kDrop});
  EXPECT_EQ(std::ssize(dropped), items - items % ranks);
  for (const auto& [item, n] : dropped) EXPECT_EQ(n, 1) << item;
  for (int64_t r = 1; r < ranks; ++r) {
    for (const Remainder how : {Remainder::kPad, Remainder::kDrop}) {
      EXPECT_EQ(DistributedSampler(items, ranks, r, {.remainder = how}).size(),
                DistributedSampler(items, ranks, 0, {.remainder = how}).size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Cuts,
                         testing::Values(std::pair(1, 1), std::pair(7, 1), std::pair(12, 4),
                                         std::pair(13, 4), std::pair(3, 5), std::pair(1001, 6)));

TEST(DistributedSampler, EachEpochHasAnOrderOfItsOwn) {
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 20; ++epoch) orders.insert(Share(50, 1, 0, epoch, {.seed = 9}));
  orders.insert(Share(50, 1, 0, 0, {.seed = 10}));
  EXPECT_EQ(orders.size(), 21u);
  EXPECT_EQ(Share(50, 1, 0, 4, {.seed = 9}), Share(50, 1, 0, 4, {.seed = 9}));
  EXPECT_THAT(Share(4, 1, 0, 7, {.shuffle = false}), testing::ElementsAre(0, 1, 2, 3));
}

// All ranks together use the same set of items with 1, 2 and 4 ranks, in 4 / ranks rounds each.
TEST(DistributedSampler, TheItemsOfAStepDoNotDependOnTheRanks) {
  const auto one = Share(40, 1, 0, 2, {.seed = 1});
  for (const int64_t ranks : {2, 4}) {
    std::vector<int64_t> all(40);
    for (int64_t r = 0; r < ranks; ++r) {
      const auto share = Share(40, ranks, r, 2, {.seed = 1});
      for (size_t i = 0; i < share.size(); ++i) all[i * ranks + r] = share[i];
    }
    EXPECT_EQ(all, one) << ranks;
  }
}

TEST(DistributedSampler, RefusesWhatCannotBe) {
  using test::MessageOf;
  const auto make = [](int64_t items, int64_t ranks, int64_t rank, Remainder how) {
    return MessageOf([=] { DistributedSampler(items, ranks, rank, {.remainder = how}); });
  };
  EXPECT_THAT(make(0, 1, 0, Remainder::kPad), HasSubstr("at least 1"));
  EXPECT_THAT(make(5, 2, 2, Remainder::kPad), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(make(5, 2, -1, Remainder::kPad), HasSubstr("rank -1 of 2"));
  EXPECT_THAT(make(3, 4, 0, Remainder::kDrop), HasSubstr("3 items for 4 ranks"));
  const DistributedSampler sampler(5, 2, 1, {});
  EXPECT_THAT(MessageOf([&] { sampler.epoch(0)[3]; }),
              HasSubstr("position 3 is outside the epoch of rank 1"));
  EXPECT_THAT(MessageOf([&] { sampler.epoch(-1); }), HasSubstr("epoch -1"));
}

TEST(DistributedSampler, ItemsAreThoseOfTheirPositions) {
  const DistributedSampler sampler(23, /*ranks=*/2, /*rank=*/1, {.seed = 5});
  const auto order = sampler.epoch(3);
  const Tensor items = order.Items(4, 7);
  EXPECT_EQ(items.shape(), Shape({7}));
  for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(items.data<int64_t>()[i], order[4 + i]);
  EXPECT_EQ(order.Items(0, 0).numel(), 0);
  EXPECT_THROW(order.Items(sampler.size() - 2, 3), ArgumentError);
}

}  // namespace
}  // namespace lockstep::data
