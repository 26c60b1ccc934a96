#include "data/sampler.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "core/error.h"
#include "data/permutation.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<int64_t> Starts(const Sampler& sampler, int64_t first, int64_t count) {
  std::vector<int64_t> starts(count);
  sampler.WindowStarts(first, starts);
  return starts;
}

TEST(PermutationTest, IsABijection) {
  for (int64_t n = 1; n <= 300; ++n) {
    const Permutation permutation(7, n, n);
    std::vector<bool> seen(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t p = permutation(i);
      ASSERT_TRUE(p >= 0 && p < n && !seen[p]) << n << " " << i;
      seen[p] = true;
    }
  }
  for (const int64_t n : {4095, 4096, 4097, 100003, (1 << 20) + 1}) {
    const Permutation permutation(8, 0, n);
    std::vector<bool> seen(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t p = permutation(i);
      ASSERT_TRUE(p >= 0 && p < n && !seen[p]) << n << " " << i;
      seen[p] = true;
    }
  }
}

TEST(PermutationTest, HugeDomainsStayInRangeAndDoNotCollide) {
  const int64_t n = (int64_t{1} << 62) + 12345;
  const Permutation permutation(1, 2, n);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 10000; ++i) {
    for (const int64_t index : {i, n - 1 - i}) {
      const int64_t p = permutation(index);
      ASSERT_TRUE(p >= 0 && p < n);
      ASSERT_TRUE(seen.insert(p).second);
    }
  }
}

// Over many epochs each element must be at each place equally often: chi-square with (n-1)^2
// degrees of freedom, six standard deviations.
TEST(PermutationTest, EveryElementComesToEveryPlace) {
  for (const int64_t n : {3, 10, 37}) {
    const int64_t epochs = 40 * n * n;
    std::vector<int64_t> count(n * n);
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      const Permutation permutation(3, epoch, n);
      for (int64_t i = 0; i < n; ++i) ++count[i * n + permutation(i)];
    }
    const double expected = static_cast<double>(epochs) / n;
    double chi2 = 0;
    for (const int64_t c : count) chi2 += (c - expected) * (c - expected) / expected;
    const double freedom = static_cast<double>((n - 1) * (n - 1));
    EXPECT_LT(chi2, freedom + 6 * std::sqrt(2 * freedom)) << n;
    EXPECT_GT(chi2, freedom - 6 * std::sqrt(2 * freedom)) << n;
  }
}

// Neighbours must not stay neighbours: the mean distance of successive elements of a random order
// of n is n / 3.
TEST(PermutationTest, NeighboursAreSeparated) {
  const int64_t n = 100000;
  const Permutation permutation(4, 0, n);
  double distance = 0;
  for (int64_t i = 0; i + 1 < n; ++i) {
    distance += std::abs(static_cast<double>(permutation(i + 1) - permutation(i)));
  }
  EXPECT_NEAR(distance / (n - 1), n / 3.0, n * 0.005);
}

TEST(PermutationTest, SeedsAndEpochsDiffer) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t epoch = 0; epoch < 10; ++epoch) {
      const Permutation permutation(seed, epoch, 50);
      std::vector<int64_t> order;
      for (int64_t i = 0; i < 50; ++i) order.push_back(permutation(i));
      orders.insert(order);
    }
  }
  EXPECT_EQ(orders.size(), 100u);
}

TEST(SamplerTest, SequentialIsTheFormulaOfTheDesign) {
  const int64_t tokens = 1003, block = 10, windows = 100, batch = 3, micro_batches = 8;
  const Sampler sampler(Order::kSequential, 1, tokens, block);
  EXPECT_EQ(sampler.windows_per_epoch(), windows);
  const BatchLayout layout{batch, micro_batches};
  for (int64_t s = 0; s < 12; ++s) {
    for (int64_t m = 0; m < micro_batches; ++m) {
      const auto starts = Starts(sampler, layout.FirstSample(s, m), batch);
      for (int64_t i = 0; i < batch; ++i) {
        EXPECT_EQ(starts[i], (((s * micro_batches + m) * batch + i) % windows) * block);
      }
    }
  }
}

TEST(SamplerTest, WindowsNeedOneTokenMoreThanTheirInputs) {
  EXPECT_EQ(Sampler(Order::kShuffled, 1, 20, 10).windows_per_epoch(), 1);
  EXPECT_EQ(Sampler(Order::kShuffled, 1, 21, 10).windows_per_epoch(), 2);
  EXPECT_THAT(MessageOf<ArgumentError>([] { Sampler(Order::kShuffled, 1, 10, 10); }),
              AllOf(HasSubstr("10 tokens"), HasSubstr("block_size + 1 = 11")));
  EXPECT_THROW(Sampler(Order::kShuffled, 1, 10, 0), ArgumentError);
  EXPECT_THROW(Sampler(Order::kShuffled, 1, 20, 10).WindowStart(-1), ArgumentError);
}

TEST(SamplerTest, EveryEpochOfShuffledHasEveryWindowOnce) {
  const Sampler sampler(Order::kShuffled, 5, 1003, 10);
  std::vector<int64_t> windows(100);
  for (int64_t i = 0; i < 100; ++i) windows[i] = i * 10;
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<int64_t> starts = Starts(sampler, epoch * 100, 100);
    orders.insert(starts);
    std::ranges::sort(starts);
    EXPECT_EQ(starts, windows);
  }
  EXPECT_EQ(orders.size(), 20u);
}

TEST(SamplerTest, RangesOfSamplesAreTheirElements) {
  for (const Order order : {Order::kShuffled, Order::kRandom, Order::kSequential}) {
    const Sampler sampler(order, 11, 77, 10);  // 7 windows an epoch: ranges cross several
    const auto all = Starts(sampler, 0, 60);
    for (int64_t first = 0; first < 40; ++first) {
      EXPECT_EQ(sampler.WindowStart(first), all[first]);
      for (const int64_t count : {0, 1, 6, 20}) {
        EXPECT_EQ(Starts(sampler, first, count),
                  std::vector(all.begin() + first, all.begin() + first + count));
      }
    }
  }
}

// However a step of 12 samples is divided, it has the same samples in the same order.
TEST(SamplerTest, StepsDoNotDependOnTheMicroBatches) {
  const Sampler sampler(Order::kShuffled, 2, 5000, 16);
  const auto step = [&](int64_t s, int64_t batch, int64_t micro_batches) {
    const BatchLayout layout{batch, micro_batches};
    EXPECT_EQ(layout.SamplesPerStep(), 12);
    std::vector<int64_t> samples;
    for (int64_t m = 0; m < micro_batches; ++m) {
      for (const int64_t start : Starts(sampler, layout.FirstSample(s, m), batch)) {
        samples.push_back(start);
      }
    }
    return samples;
  };
  for (int64_t s = 0; s < 30; ++s) {
    const auto expected = step(s, 12, 1);
    EXPECT_EQ(step(s, 3, 4), expected);
    EXPECT_EQ(step(s, 1, 12), expected);
  }
}

TEST(SamplerTest, RandomOffsetsAreUniformOverAllWindows) {
  const int64_t tokens = 50, block = 10, offsets = 40, draws = 400000;  // starts 0 to 39
  const Sampler sampler(Order::kRandom, 9, tokens, block);
  std::vector<int64_t> count(offsets);
  for (const int64_t start : Starts(sampler, 0, draws)) {
    ASSERT_TRUE(start >= 0 && start < offsets);
    ++count[start];
  }
  const double expected = static_cast<double>(draws) / offsets;
  double chi2 = 0;
  for (const int64_t c : count) chi2 += (c - expected) * (c - expected) / expected;
  EXPECT_LT(chi2, 39 + 6 * std::sqrt(2.0 * 39));
  EXPECT_GT(chi2, 8);  // too even is not random either
  EXPECT_NE(Starts(sampler, 0, 100), Starts(Sampler(Order::kRandom, 10, tokens, block), 0, 100));
}

// Frozen: changing these orders would change every resumed run.
TEST(SamplerTest, OrdersAreFrozen) {
  EXPECT_EQ(Starts(Sampler(Order::kShuffled, 1337, 1001, 10), 0, 8),
            (std::vector<int64_t>{880, 620, 910, 820, 270, 340, 640, 850}));
  EXPECT_EQ(Starts(Sampler(Order::kShuffled, 1337, 1001, 10), 1000000, 8),
            (std::vector<int64_t>{350, 600, 790, 560, 50, 290, 820, 580}));
  EXPECT_EQ(Starts(Sampler(Order::kRandom, 1337, 1001, 10), 0, 8),
            (std::vector<int64_t>{897, 34, 671, 390, 870, 606, 410, 517}));
}

TEST(SamplerTest, NamesAndLayoutsAreChecked) {
  for (const Order order : {Order::kShuffled, Order::kRandom, Order::kSequential}) {
    EXPECT_EQ(ParseOrder(Name(order)), order);
  }
  EXPECT_THAT(MessageOf<InputError>([] { ParseOrder("shufled"); }),
              AllOf(HasSubstr("data.order=shufled"), HasSubstr("shuffled, random or sequential")));
  EXPECT_THROW((BatchLayout{0, 1}.Check()), ArgumentError);
  EXPECT_THROW((BatchLayout{1, 0}.Check()), ArgumentError);
  EXPECT_THROW((BatchLayout{1, 2, {2}}.Check()), ArgumentError);
  EXPECT_NO_THROW((BatchLayout{1, 2, {1}}.Check()));
}

}  // namespace
}  // namespace lockstep::data
