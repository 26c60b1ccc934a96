#include "dist/data_parallel/fixed_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "core/philox.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A sum written out: "(0+4)" is leaf 0 plus leaf 4. Addition commutes, so the smaller text is
// first.
std::string Plus(const std::string& a, const std::string& b) {
  return a < b ? "(" + a + "+" + b + ")" : "(" + b + "+" + a + ")";
}

// What the design says, word by word.
std::string Reference(int64_t n) {
  std::vector<std::string> leaves;
  for (int64_t j = 0; j < n; ++j) leaves.push_back(StrCat(j));
  while (n % 2 == 0) {
    n /= 2;
    for (int64_t j = 0; j < n; ++j) leaves[j] = Plus(leaves[j], leaves[j + n]);
  }
  std::string sum = leaves[0];
  for (int64_t j = 1; j < n; ++j) sum = Plus(sum, leaves[j]);
  return sum;
}

// What ranks that follow the plan compute.
std::string Planned(int64_t ranks, int64_t accum) {
  const FixedOrder order(ranks, accum);
  std::vector<std::string> sums;
  for (int64_t r = 0; r < ranks; ++r) {
    std::map<int64_t, std::string> buffers;
    for (const FixedOrder::MicroStep& step : order.micro_steps()) {
      EXPECT_FALSE(buffers.contains(step.buffer)) << "overwrites a partial sum";
      EXPECT_LT(step.buffer, order.buffers());
      buffers[step.buffer] = StrCat(step.index * ranks + r);
      for (const int64_t from : step.take_up) {
        EXPECT_TRUE(buffers.contains(from)) << "takes up an empty buffer";
        buffers[step.buffer] = Plus(buffers[step.buffer], buffers[from]);
        buffers.erase(from);
      }
    }
    EXPECT_EQ(buffers.size(), 1u);
    sums.push_back(buffers[order.micro_steps().back().buffer]);
  }
  for (const auto& [to, from] : order.rank_adds()) sums[to] = Plus(sums[to], sums[from]);
  return sums[0];
}

TEST(FixedOrder, TheAddsAreThoseOfTheDesign) {
  for (int64_t n = 1; n <= 70; ++n) {
    std::vector<std::string> leaves;
    for (int64_t j = 0; j < n; ++j) leaves.push_back(StrCat(j));
    for (const auto& [to, from] : FixedOrderAdds(n)) leaves[to] = Plus(leaves[to], leaves[from]);
    EXPECT_EQ(leaves[0], Reference(n)) << n;
    EXPECT_EQ(std::ssize(FixedOrderAdds(n)), n - 1);
  }
}

// Every cut that is allowed gives the same sum; every other one is refused.
TEST(FixedOrder, NoCutChangesTheSum) {
  for (int64_t leaves = 1; leaves <= 96; ++leaves) {
    for (int64_t ranks = 1; ranks <= leaves; ++ranks) {
      if (leaves % ranks != 0) continue;
      const bool fits = ranks == 1 || std::has_single_bit(static_cast<uint64_t>(leaves / ranks));
      if (fits) {
        EXPECT_EQ(Planned(ranks, leaves / ranks), Reference(leaves)) << leaves << " on " << ranks;
      } else {
        EXPECT_THROW(FixedOrder(ranks, leaves / ranks), ArgumentError) << leaves << " on " << ranks;
      }
    }
  }
}

TEST(FixedOrder, PartialSumsTakeLogarithmicallyManyBuffers) {
  EXPECT_EQ(FixedOrder(4, 1).buffers(), 1);
  EXPECT_EQ(FixedOrder(2, 2).buffers(), 2);
  EXPECT_EQ(FixedOrder(2, 8).buffers(), 4);
  EXPECT_EQ(FixedOrder(1, 1024).buffers(), 11);
  EXPECT_EQ(FixedOrder(1, 12).buffers(), 4);  // 2 + 1, and the total
  std::vector<int64_t> visited;
  const FixedOrder eight(3, 8);
  for (const auto& step : eight.micro_steps()) visited.push_back(step.index);
  EXPECT_THAT(visited, testing::ElementsAre(0, 4, 2, 6, 1, 5, 3, 7));
}

// The same with numbers whose sum depends on the order.
TEST(FixedOrder, TheOrderCounts) {
  const Philox random(3);
  int differ = 0;
  for (int64_t trial = 0; trial < 50; ++trial) {
    std::vector<float> x;
    for (int64_t j = 0; j < 12; ++j) {
      x.push_back((ToUniform(random.At(trial, 2 * j)) - 0.5f) *
                  std::ldexp(1.0f, static_cast<int>(random.At(trial, 2 * j + 1) % 20)));
    }
    std::vector<float> tree = x;
    for (const auto& [to, from] : FixedOrderAdds(12)) tree[to] += tree[from];
    float in_order = 0;
    for (const float v : x) in_order += v;
    differ += tree[0] != in_order;
  }
  EXPECT_GT(differ, 10);
}

TEST(FixedOrder, ARefusalNamesTheNearestThatWork) {
  const auto message = [](int64_t ranks, int64_t accum) {
    return test::MessageOf([=] { FixedOrder(ranks, accum); });
  };
  EXPECT_THAT(message(4, 3),
              AllOf(HasSubstr("the ordered sum over 12 micro-batches cannot be cut into 4 ranks of "
                              "3 micro-steps"),
                    HasSubstr("use 3 ranks (4 micro-steps each) or 6 ranks (2 micro-steps "
                              "each)"),
                    HasSubstr("dist.reduction=fast")));
  EXPECT_THAT(message(2, 3),
              HasSubstr("use 1 rank (6 micro-steps) or 3 ranks (2 micro-steps each)"));
  EXPECT_THAT(message(2, 5),
              HasSubstr("use 1 rank (10 micro-steps) or 5 ranks (2 micro-steps each)"));
  EXPECT_THAT(message(0, 3), HasSubstr("at least 1 rank"));
  EXPECT_THAT(test::MessageOf([] { FixedOrderAdds(0); }), HasSubstr("at least 1 term"));
}

}  // namespace
}  // namespace lockstep::dist
