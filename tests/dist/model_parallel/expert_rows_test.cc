// What expert parallelism is made of: who computes what, rows that travel, products in segments.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/autograd/engine.h"
#include "dist/expert/exchange_rows.h"
#include "dist/expert/expert_parallel.h"
#include "dist/expert/segmented_linear.h"
#include "kernels/grouped_linear/grouped_linear.h"
#include "tests/dist/in_process.h"
#include "tests/dist/model_parallel/random_tensors.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using test::MessageOf;
using testing::ElementsAre;
using testing::HasSubstr;

// ---- Who computes what ----

// Sums as expressions, of which equal ones are equal sums bit for bit.
std::string Plus(const std::string& a, const std::string& b) {
  return StrCat("(", std::min(a, b), "+", std::max(a, b), ")");
}

std::string FixedOrderSum(std::vector<std::string> leaves) {
  for (const auto& [to, from] : FixedOrderAdds(std::ssize(leaves))) {
    leaves[to] = Plus(leaves[to], leaves[from]);
  }
  return leaves[0];
}

TEST(AssignForExperts, IsThatOfTheComment) {
  EXPECT_THAT(AssignForExperts(8, 4, 2, true), ElementsAre(ElementsAre(0, 2), ElementsAre(4, 6),
                                                           ElementsAre(1, 3), ElementsAre(5, 7)));
}

// What a group's ranks compute in a micro-step is a subtree, and what comes of it the leaves of the
// sum of fewer.
TEST(AssignForExperts, MakesSubtrees) {
  for (const auto& [all, ranks, ep] : {std::tuple(4, 2, 2),
                                       {8, 4, 2},
                                       {8, 4, 4},
                                       {8, 8, 2},
                                       {12, 4, 2},
                                       {12, 4, 4},
                                       {16, 4, 2},
                                       {24, 8, 4}}) {
    std::vector<std::string> leaves;
    for (int m = 0; m < all; ++m) leaves.push_back(StrCat(m));
    std::vector<std::string> sums(static_cast<size_t>(all / ep));
    const Assignment assignment = AssignForExperts(all, ranks, ep, true);
    const Assignment of_groups = AssignSubtrees(all / ep, ranks / ep);
    for (int group = 0; group < ranks / ep; ++group) {
      for (int step = 0; step < all / ranks; ++step) {
        std::vector<std::string> segments;
        for (int s = 0; s < ep; ++s) segments.push_back(StrCat(assignment[group * ep + s][step]));
        sums[of_groups[group][step]] = FixedOrderSum(segments);
      }
    }
    EXPECT_EQ(FixedOrderSum(sums), FixedOrderSum(leaves)) << all << " " << ranks << " " << ep;
  }
}

TEST(AssignForExperts, NeedsEquallyManyOnAllRanks) {
  EXPECT_THAT(MessageOf([] { AssignForExperts(6, 4, 2, true); }), HasSubstr("use multiples"));
}

// ---- Rows ----

TEST(ExchangeRows, SendsUnevenPartsAndTheirGradientsBack) {
  // Rank 1 sends nothing, rank 2 receives nothing.
  const std::vector<std::vector<int64_t>> counts = {{1, 2, 0}, {0, 0, 0}, {3, 1, 0}};
  RunInProcess(3, [&](ProcessGroup& all) {
    const std::shared_ptr<ProcessGroup> group = all.Duplicate("rows");
    const int rank = group->rank();
    RowCounts mine{.send = counts[rank], .receive = {}};
    for (int r = 0; r < 3; ++r) mine.receive.push_back(counts[r][rank]);
    // Row i of rank r is {10 r + i, 1}.
    const int64_t n = mine.send[0] + mine.send[1];
    Tensor rows = Tensor::Full({n, 2}, 1, DType::kF32);
    for (int64_t i = 0; i < n; ++i) {
      rows.Slice(0, i, i + 1).Slice(1, 0, 1).Fill(static_cast<double>(10 * rank + i));
    }
    rows.SetRequiresGrad();
    const Tensor got = ExchangeRows(group, rows, mine, "rows");
    const std::vector<std::vector<float>> expected = {
        {0, 1, 20, 1, 21, 1, 22, 1}, {1, 1, 2, 1, 23, 1}, {}};
    EXPECT_EQ(got.ToVector<float>(), expected[rank]);
    // The gradient of a row is the number that its receiver gives it.
    Tensor gradient = got.Detach().Clone();
    for (int64_t i = 0; i < got.dim(0); ++i) {
      gradient.Slice(0, i, i + 1).Slice(1, 1, 2).Fill(static_cast<double>(rank));
    }
    if (!got.requires_grad()) return;
    Backward(got, gradient);
    const std::vector<float> of_rows = rows.grad().ToVector<float>();
    int64_t row = 0;
    for (int r = 0; r < 3; ++r) {
      for (int64_t i = 0; i < mine.send[r]; ++i, ++row) {
        EXPECT_EQ(of_rows[2 * row], 10.0f * static_cast<float>(rank) + static_cast<float>(row));
        EXPECT_EQ(of_rows[2 * row + 1], static_cast<float>(r));
      }
    }
  });
}

// ---- Products ----

TEST(SegmentedLinear, IsThatOfEachSegmentWithGradientsAddedInPairs) {
  constexpr int64_t kExperts = 3, kIn = 7, kOut = 5;
  const std::vector<std::vector<int32_t>> offsets = {
      {0, 2, 2, 5}, {0, 0, 0, 0}, {0, 9, 11, 12}, {0, 0, 3, 3}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpertSegments segments{.begin = {0}, .offsets = {}};
    for (const auto& at : offsets) {
      segments.begin.push_back(segments.begin.back() + at.back());
      segments.offsets.push_back(Tensor::FromVector(at, {kExperts + 1}));
    }
    const int64_t n = segments.begin.back();
    const Tensor x = LeafOf(Random({n, kIn}, 1, dtype)), dy = Random({n, kOut}, 3, dtype);
    const Tensor weight = LeafOf(Random({kExperts, kOut, kIn}, 2, dtype));
    weight.autograd()->leaf->SetDType(DType::kF32);
    const Tensor y = SegmentedLinear(x, {weight}, segments);
    Backward(y, dy);
    std::vector<Tensor> sums;
    for (size_t s = 0; s < 4; ++s) {
      const auto part = [&](const Tensor& all) {
        return all.Detach().Slice(0, segments.begin[s], segments.begin[s + 1]);
      };
      const Tensor xs = LeafOf(part(x)), w = LeafOf(weight);
      w.autograd()->leaf->SetDType(DType::kF32);
      const Tensor alone = ops::GroupedLinear(xs, w, segments.offsets[s]);
      Backward(alone, part(dy));
      EXPECT_EQ(part(y).To(DType::kF32).ToVector<float>(), alone.To(DType::kF32).ToVector<float>());
      EXPECT_EQ(part(x.grad()).To(DType::kF32).ToVector<float>(),
                xs.grad().To(DType::kF32).ToVector<float>());
      sums.push_back(w.grad());
    }
    const auto plus = [](const Tensor& a, const Tensor& b) { return ops::Add(a, b); };
    EXPECT_EQ(weight.grad().ToVector<float>(),
              plus(plus(sums[0], sums[2]), plus(sums[1], sums[3])).ToVector<float>());
    // Added to what is there.
    const std::vector<float> once = weight.grad().ToVector<float>();
    Backward(SegmentedLinear(x, {weight}, segments), dy);
    std::vector<float> twice = once;
    for (float& g : twice) g += g;
    EXPECT_EQ(weight.grad().ToVector<float>(), twice);
  }
}

// A copy of the weight for each segment, or for every other one, has the gradient of these alone.
TEST(SegmentedLinear, CopiesHaveTheGradientsOfTheirSegments) {
  const std::vector<int64_t> rows = {3, 1, 4, 2};
  ExpertSegments segments{.begin = {0}, .offsets = {}};
  for (const int64_t n : rows) {
    segments.begin.push_back(segments.begin.back() + n);
    segments.offsets.push_back(Tensor::FromVector<int32_t>({0, static_cast<int32_t>(n)}, {2}));
  }
  const Tensor x = Random({10, 7}, 1), dy = Random({10, 5}, 2), weight = Random({1, 5, 7}, 3);
  const auto of_segment = [&](size_t s) {
    const auto part = [&](const Tensor& all) {
      return all.Slice(0, segments.begin[s], segments.begin[s + 1]);
    };
    const Tensor w = LeafOf(weight);
    Backward(ops::GroupedLinear(part(x), w, segments.offsets[s]), part(dy));
    return w.grad();
  };
  std::vector<Tensor> four, two;
  for (int i = 0; i < 4; ++i) four.push_back(LeafOf(weight));
  Backward(SegmentedLinear(x, four, segments), dy);
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(four[s].grad().ToVector<double>(), of_segment(s).ToVector<double>());
  }
  for (int i = 0; i < 2; ++i) two.push_back(LeafOf(weight));
  Backward(SegmentedLinear(x, two, segments), dy);
  for (size_t s = 0; s < 2; ++s) {
    EXPECT_EQ(two[s].grad().ToVector<double>(),
              ops::Add(of_segment(s), of_segment(s + 2)).ToVector<double>());
  }
  EXPECT_THAT(MessageOf([&] {
                SegmentedLinear(x, {weight, weight, weight}, segments);
              }),
              HasSubstr("of at most 4, as many as there are segments: got 3"));
}

TEST(SegmentedLinear, RefusesWhatDoesNotFit) {
  const Tensor weight = Random({1, 2, 2}, 1);
  const Tensor none = Tensor::FromVector<int32_t>({0, 0}, {2});
  EXPECT_THAT(MessageOf([&] {
                SegmentedLinear(Random({0, 2}, 1), {weight},
                                {.begin = {0, 0, 0, 0}, .offsets = {none, none, none}});
              }),
              HasSubstr("a power of two of segments, got 3"));
}

}  // namespace
}  // namespace lockstep::dist
