#include "dist/data_parallel/fixed_order.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>

#include "core/philox.h"
#include "dist/shard/shard_sum.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A sum as text: "(0+4)" is leaf 0 plus leaf 4. Addition commutes, so the smaller text comes first.
std::string Plus(const std::string& a, const std::string& b) {
  return a < b ? "(" + a + "+" + b + ")" : "(" + b + "+" + a + ")";
}

// The definition of the fixed-order sum, literally.
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

// The sum that ranks compute by the plan, of leaf(0), leaf(1), ...; checks that they use buffers
// correctly.
template <class Leaf>
std::string Planned(const FixedOrderPlan& plan, const Leaf& leaf) {
  std::vector<std::vector<std::string>> terms;
  size_t rounds = 0;
  for (const FixedOrderPlan::Rank& rank : plan.ranks) {
    std::map<int64_t, std::string> buffers;
    for (const FixedOrderPlan::MicroStep& step : rank.micro_steps) {
      EXPECT_FALSE(buffers.contains(step.buffer)) << "overwrites a partial sum";
      EXPECT_LT(step.buffer, rank.buffers);
      buffers[step.buffer] = leaf(step.micro_batch);
      for (const int64_t from : step.take_up) {
        EXPECT_TRUE(buffers.contains(from)) << "adds an empty buffer";
        buffers[step.buffer] = Plus(buffers[step.buffer], buffers[from]);
        buffers.erase(from);
      }
    }
    EXPECT_EQ(buffers.size(), rank.terms.size()) << "every buffer is sent exactly once";
    if (!rank.micro_steps.empty()) {
      EXPECT_EQ(rank.terms.back(), rank.micro_steps.back().buffer);
    }
    terms.emplace_back();
    for (const int64_t term : rank.terms) terms.back().push_back(buffers[term]);
    rounds = std::max(rounds, rank.terms.size());
  }
  std::vector<std::string> rows;
  for (size_t i = 0; i < rounds; ++i) {
    for (const auto& of_rank : terms) {
      if (i < of_rank.size()) rows.push_back(of_rank[i]);
    }
  }
  EXPECT_EQ(std::ssize(rows), plan.rows);
  EXPECT_EQ(std::ssize(plan.adds), plan.rows - 1);
  for (const auto& [to, from] : plan.adds) rows[to] = Plus(rows[to], rows[from]);
  return rows[plan.sum];
}

std::string Planned(const Assignment& assignment) {
  const FixedOrderPlan plan = PlanFixedOrder(assignment);
  for (size_t r = 0; r < assignment.size(); ++r) {
    std::vector<int64_t> computed;
    for (const auto& step : plan.ranks[r].micro_steps) computed.push_back(step.micro_batch);
    EXPECT_EQ(computed, assignment[r]);
  }
  return Planned(plan, [](int64_t leaf) { return StrCat(leaf); });
}

int64_t MostTerms(const FixedOrderPlan& plan) {
  size_t most = 0;
  for (const auto& rank : plan.ranks) most = std::max(most, rank.terms.size());
  return static_cast<int64_t>(most);
}

int64_t MostBuffers(const Assignment& assignment) {
  int64_t most = 0;
  for (const auto& rank : PlanFixedOrder(assignment).ranks) most = std::max(most, rank.buffers);
  return most;
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

TEST(FixedOrder, NoNumberOfRanksChangesTheSum) {
  for (int64_t m = 1; m <= 32; ++m) {
    for (int64_t ranks = 1; ranks <= m; ++ranks) {
      const Assignment subtrees = AssignSubtrees(m, ranks);
      EXPECT_EQ(Planned(subtrees), Reference(m)) << m << " on " << ranks;
      EXPECT_EQ(Planned(AssignInTurn(m, ranks)), Reference(m)) << m << " on " << ranks;
      for (const auto& of_rank : subtrees) {
        EXPECT_GE(std::ssize(of_rank), m / ranks);
        EXPECT_LE(std::ssize(of_rank), (m + ranks - 1) / ranks);
      }
      EXPECT_EQ(subtrees[0][0], 0);
    }
  }
}

// Even if some ranks have none, and in any order.
TEST(FixedOrder, NoAssignmentChangesTheSum) {
  const Philox random(5);
  for (int64_t m = 1; m <= 32; ++m) {
    for (int64_t trial = 0; trial < 100; ++trial) {
      uint64_t draws = 0;
      const auto draw = [&](int64_t n) {
        return static_cast<int64_t>(random.At(100 * m + trial, draws++) % n);
      };
      Assignment assignment(1 + draw(m + 2));
      for (int64_t i = 0; i < m; ++i) {
        auto& of_rank = assignment[draw(std::ssize(assignment))];
        of_rank.insert(of_rank.begin() + draw(std::ssize(of_rank) + 1), i);
      }
      EXPECT_EQ(Planned(assignment), Reference(m)) << m << ", trial " << trial;
    }
  }
}

// Keeps the bits, and the bytes sent, of earlier versions' runs.
TEST(FixedOrder, IfEachRankHasOneSubtreeMicroBatchesAreAssignedInTurn) {
  for (int64_t m = 1; m <= 96; ++m) {
    for (int64_t ranks = 1; ranks <= m; ++ranks) {
      if (m % ranks != 0 || !std::has_single_bit(static_cast<uint64_t>(m / ranks))) continue;
      const Assignment assignment = AssignSubtrees(m, ranks);
      for (int64_t r = 0; r < ranks; ++r) {
        for (const int64_t leaf : assignment[r]) EXPECT_EQ(leaf % ranks, r) << m << " on " << ranks;
      }
      const FixedOrderPlan plan = PlanFixedOrder(assignment);
      EXPECT_EQ(plan.rows, ranks);
      EXPECT_EQ(plan.sum, 0);
      EXPECT_EQ(plan.adds, FixedOrderAdds(ranks));
    }
  }
}

TEST(FixedOrder, PartialSumsTakeLogarithmicallyManyBuffers) {
  EXPECT_EQ(MostBuffers(AssignSubtrees(4, 4)), 1);
  EXPECT_EQ(MostBuffers(AssignSubtrees(4, 2)), 2);
  EXPECT_EQ(MostBuffers(AssignSubtrees(16, 2)), 4);
  EXPECT_EQ(MostBuffers(AssignSubtrees(1024, 1)), 11);
  EXPECT_EQ(MostBuffers(AssignSubtrees(12, 1)), 4);  // 2 + 1, and the total
  EXPECT_THAT(AssignSubtrees(24, 3)[1], testing::ElementsAre(1, 13, 7, 19, 4, 16, 10, 22));
  EXPECT_THAT(AssignSubtrees(12, 2),
              testing::ElementsAre(testing::ElementsAre(0, 6, 3, 9, 1, 7),
                                   testing::ElementsAre(4, 10, 2, 8, 5, 11)));
}

// The leaves that are left when the count is odd are added in order, so ranks other than the first
// send each of theirs separately; of the levels that are halved, a rank sends at most two terms per
// level.
TEST(FixedOrder, RanksHaveFewTermsAndBuffers) {
  for (const int64_t m : {8, 12, 60, 64, 96, 256, 1000}) {
    const int64_t levels = std::countr_zero(static_cast<uint64_t>(m)), odd = m >> levels;
    for (int64_t ranks = 1; ranks <= m; ++ranks) {
      const Assignment assignment = AssignSubtrees(m, ranks);
      const int64_t most = 2 * levels + odd / ranks + 1;
      EXPECT_LE(MostTerms(PlanFixedOrder(assignment)), most) << m << " on " << ranks;
      EXPECT_LE(MostBuffers(assignment), most + levels) << m << " on " << ranks;
    }
  }
}

// With numbers whose sum depends on the order.
TEST(FixedOrder, TheOrderMatters) {
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

TEST(FixedOrder, RefusesRanksWithoutAMicroBatch) {
  for (const auto assign : {AssignSubtrees, AssignInTurn}) {
    EXPECT_THAT(test::MessageOf([=] { assign(3, 4); }),
                AllOf(HasSubstr("3 micro-batches cannot be distributed over 4 ranks"),
                      HasSubstr("use fewer ranks, or more micro-batches")));
    EXPECT_THAT(test::MessageOf([=] { assign(3, 0); }), HasSubstr("over 0 ranks"));
  }
  EXPECT_THAT(test::MessageOf([] { FixedOrderAdds(0); }), HasSubstr("at least 1 term"));
  const auto message = [](const Assignment& a) {
    return test::MessageOf([&] { PlanFixedOrder(a); });
  };
  EXPECT_THAT(message({{0, 2}, {3}}), HasSubstr("from 0 to 2 must be assigned to one rank, and 1"));
  EXPECT_THAT(message({{0, 1}, {1}}), HasSubstr("and 1 is not"));
}

// The two sums of a sharded model.
TEST(ShardSum, IsTheFixedOrderSum) {
  int planned = 0;
  for (const int64_t shards : {1, 2, 3, 4, 8}) {
    for (const int64_t copies : {1, 2, 3}) {
      for (const int64_t accum : {1, 2, 3, 4, 6, 8}) {
        for (const auto accumulate : {Accumulate::kShards, Accumulate::kWhole}) {
          const int64_t m = accum * shards * copies;
          const auto make = [&] {
            return PlanShardSum(m, {shards, copies}, accumulate, GradientSum::kOrdered);
          };
          const int64_t first = accumulate == Accumulate::kShards ? shards : accum * shards;
          const int64_t second = m / first;
          if (second > 1 && !std::has_single_bit<uint64_t>(first)) {
            EXPECT_THAT(test::MessageOf(make), HasSubstr("needs a power of two"));
            continue;
          }
          const ShardSumPlan plan = make();
          const std::string sum = Planned(plan.across, [&](int64_t j) {
            return Planned(plan.within, [&](int64_t i) { return StrCat(i * second + j); });
          });
          EXPECT_EQ(sum, Reference(m)) << shards << " " << copies << " " << accum;
          std::vector<int64_t> all;
          for (int64_t s = 0; s < shards; ++s) {
            for (int64_t c = 0; c < copies; ++c) {
              const auto order = plan.MicroOrder(s, c);
              EXPECT_EQ(std::ssize(order), accum);
              all.insert(all.end(), order.begin(), order.end());
            }
          }
          std::ranges::sort(all);
          for (int64_t i = 0; i < m; ++i) EXPECT_EQ(all[i], i);
          // Scattering after each backward takes one buffer of whole gradients.
          if (accumulate == Accumulate::kShards) {
            EXPECT_EQ(plan.within.ranks[0].buffers, 1);
          }
          ++planned;
        }
      }
    }
  }
  EXPECT_GT(planned, 100);
  EXPECT_THAT(test::MessageOf([] {
                PlanShardSum(6, {4, 1}, Accumulate::kShards, GradientSum::kFast);
              }),
              HasSubstr("a step of 6 micro-batches cannot be partitioned equally across 4 ranks"));
}

// Where experts are split across ranks: in each micro-step, those of a group compute micro-batches
// m, m + M / ep, ..., of which m is that of the smaller sum.
TEST(ShardSum, GivesExpertsTheLeavesOfASmallerSum) {
  using enum Accumulate;
  int planned = 0;
  for (const int64_t experts : {2, 4}) {
    for (const int64_t groups : {1, 2, 4}) {
      for (const int64_t copies : {1, 2, 3}) {
        for (const int64_t accum : {1, 2, 4, 6}) {
          for (const auto accumulate : {kShards, kWhole}) {
            const int64_t shards = experts * groups, m = accum * shards * copies;
            if (accumulate == kWhole && copies > 1 && accum == 6) continue;  // no power of two
            const auto sum = GradientSum::kOrdered;
            const ShardSumPlan all = PlanShardSum(m, {shards, copies}, accumulate, sum, experts);
            const ShardSumPlan of_experts =
                PlanShardSum(m / experts, {groups, copies}, accumulate, sum);
            const int64_t second = m / (accumulate == kShards ? shards : accum * shards);
            EXPECT_EQ(Planned(all.across,
                              [&](int64_t j) {
                                return Planned(all.within,
                                               [&](int64_t i) { return StrCat(i * second + j); });
                              }),
                      Reference(m));
            for (int64_t c = 0; c < copies; ++c) {
              for (int64_t s = 0; s < shards; ++s) {
                std::vector<int64_t> expected = of_experts.MicroOrder(s / experts, c);
                for (int64_t& micro : expected) micro += s % experts * (m / experts);
                EXPECT_EQ(all.MicroOrder(s, c), expected) << "shard " << s << " of " << shards;
              }
            }
            ++planned;
          }
        }
      }
    }
  }
  EXPECT_GT(planned, 100);
  EXPECT_THAT(test::MessageOf([] {
                PlanShardSum(8, {2, 2}, kShards, GradientSum::kOrdered, /*experts=*/4);
              }),
              HasSubstr("must divide the 2 that shard a copy of the model"));
}

}  // namespace
}  // namespace lockstep::dist
