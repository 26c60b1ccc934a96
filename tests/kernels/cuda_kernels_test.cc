// What the op suite does not reach on a GPU: ids and places out of range, which cannot be reported
// to the host, what lies around a tensor, and parts of ops by themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "core/autograd/engine.h"
#include "core/autograd/grad_mode.h"
#include "kernels/adamw/adamw.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/binary/binary.h"
#include "kernels/cached_attention/cached_attention.h"
#include "kernels/cumsum/cumsum.h"
#include "kernels/embedding/embedding.h"
#include "kernels/nll_loss/nll_loss.h"
#include "kernels/reduce/reduce.h"
#include "kernels/rotary_embedding/rotary_embedding.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "kernels/token_position_embedding/token_position_embedding.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

using test::kGpu;

class CudaKernels : public test::GpuTest {};

// first, first + 1, ...
Tensor Ascending(float first, const Shape& shape) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), first);
  return Tensor::FromVector(values, shape, kGpu);
}

// NaNs are equal.
void ExpectSame(const Tensor& got, const std::vector<float>& want) {
  const std::vector<float> values = got.ToVector<float>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(values[i] == want[i] || (std::isnan(values[i]) && std::isnan(want[i])))
        << "element " << i << " is " << values[i] << ", not " << want[i];
  }
}

// The first rows of a longer table: behind them are numbers, not the NaNs of unused memory, which
// would look like the row of an unknown id.
Tensor Rows(const Tensor& table, int64_t rows) { return table.Slice(0, 0, rows); }

TEST_F(CudaKernels, AnUnknownIdGivesARowOfNaNsAndHasNoGradient) {
  const Tensor ids = Tensor::FromVector<int32_t>({1, -1, 0, 3, 1}, {5}, kGpu);
  const Tensor weight = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {3, 2}, kGpu);
  ExpectSame(ops::Embedding(ids, Rows(Ascending(1, {5, 2}), 3)),
             {3, 4, NAN, NAN, 1, 2, NAN, NAN, 3, 4});
  const Tensor leaf = weight.Clone().SetRequiresGrad();
  const Tensor y = ops::Embedding(ids, leaf);
  ExpectSame(y, {3, 4, NAN, NAN, 1, 2, NAN, NAN, 3, 4});
  const Tensor root = Tensor::Full({5, 2}, 1, DType::kF32, kGpu);
  Backward(std::span(&y, 1), std::span(&root, 1));
  EXPECT_EQ(leaf.grad().ToVector<float>(), (std::vector<float>{1, 1, 2, 2, 0, 0}));
}

// A rank's part of a table whose rows ranks share: rows 1 and 2 of 4.
TEST_F(CudaKernels, RowsOfOtherPartsOfATableAreZerosAndHaveNoGradient) {
  const Tensor ids = Tensor::FromVector<int32_t>({0, 1, 2, 3}, {4}, kGpu);
  const TablePart part{.first = 1, .of = 4};
  const Tensor y = Tensor::Empty({4, 2}, DType::kF32, kGpu);
  embedding_forward(CurrentStream(kGpu), ids, Rows(Ascending(1, {4, 2}), 2), part, y);
  ExpectSame(y, {0, 0, 1, 2, 3, 4, 0, 0});
  const Tensor gradients = Tensor::Empty({2, 2}, DType::kF32, kGpu);
  embedding_backward(CurrentStream(kGpu), ids, Ascending(1, {4, 2}), part, gradients, false);
  ExpectSame(gradients, {3, 4, 5, 6});
}

TEST_F(CudaKernels, AnUnknownIdGivesARowOfNaNsWithPositions) {
  const Tensor ids = Tensor::FromVector<int32_t>({3, 1, -1, 2}, {2, 2}, kGpu);
  const Tensor tokens = Rows(Ascending(1, {5, 2}), 3), places = Rows(Ascending(10, {4, 2}), 2);
  ExpectSame(ops::TokenPositionEmbedding(ids, tokens, places),
             {NAN, NAN, 15, 17, NAN, NAN, 17, 19});
}

TEST_F(CudaKernels, AnUnknownPositionGivesARowOfNaNs) {
  const Tensor positions = Tensor::FromVector<int32_t>({0, -1, 2, 1}, {1, 4}, kGpu);
  const Tensor ids = Tensor::FromVector<int32_t>({0, 0, 0, 0}, {1, 4}, kGpu);
  const Tensor places = Rows(Ascending(10, {4, 2}), 2);
  ExpectSame(ops::TokenPositionEmbedding(ids, Ascending(0, {1, 2}), places, 0, positions),
             {10, 12, NAN, NAN, NAN, NAN, 12, 14});
  // Of two heads the first is turned.
  const Tensor table = Rows(ops::RotaryTable(4, 2, {}, DType::kF32, kGpu), 2);
  const Tensor turned = ops::RotaryEmbedding(
      Tensor::FromVector<float>({1, 0, 5, 6, 1, 0, 5, 6, 1, 0, 5, 6, 1, 0, 5, 6}, {1, 4, 4}, kGpu),
      table, 1, 0, positions);
  const auto c = static_cast<float>(std::cos(1.0)), s = static_cast<float>(std::sin(1.0));
  ExpectSame(turned, {1, 0, 5, 6, NAN, NAN, 5, 6, NAN, NAN, 5, 6, c, s, 5, 6});
}

// More rows than one digit of the sort has values, each digit of which appears.
TEST_F(CudaKernels, EachOfManyRowsGetsItsGradient) {
  constexpr int64_t kRows = 600;
  std::vector<int32_t> ids;
  std::vector<float> dy;
  for (int64_t i = 0; i < kRows; ++i) {
    ids.push_back(static_cast<int32_t>(i * 7 % kRows));
    dy.push_back(static_cast<float>(ids.back()));
  }
  const Tensor weight = Tensor::Zeros({kRows, 1}, DType::kF32, kGpu).SetRequiresGrad();
  const Tensor y = ops::Embedding(Tensor::FromVector(ids, {kRows}, kGpu), weight);
  const Tensor root = Tensor::FromVector(dy, {kRows, 1}, kGpu);
  Backward(std::span(&y, 1), std::span(&root, 1));
  EXPECT_EQ(weight.grad().ToVector<float>(), Ascending(0, {kRows}).ToVector<float>());
}

// Frequent ids: a sum of each 64 of an id's rows, which are added, in order, to that of the last
// rows. Other ids do not change that: a rank's part of the table has the bits of the whole.
TEST_F(CudaKernels, RowsOfFrequentIdsAreAddedInSegments) {
  constexpr int64_t kSegment = 64;
  const std::vector<int64_t> counts = {63, 64, 1, 65, 0, 128, 300, 191};
  const auto rows = static_cast<int64_t>(counts.size());
  std::vector<int32_t> ids;
  for (std::vector<int64_t> left = counts; std::ssize(ids) < 63 + 64 + 1 + 65 + 128 + 300 + 191;) {
    const auto id = static_cast<size_t>((std::ssize(ids) * 31 + 7) % 11 % rows);
    const size_t next =
        left[id] > 0 ? id : static_cast<size_t>(std::ranges::max_element(left) - left.begin());
    --left[next];
    ids.push_back(static_cast<int32_t>(next));
  }
  const auto n = std::ssize(ids);
  const Tensor on_gpu = Tensor::FromVector(ids, {n}, kGpu);
  for (const int64_t c : {3, 8, 40}) {
    std::vector<float> dy;
    for (int64_t i = 0; i < n * c; ++i)
      dy.push_back(1.0f / static_cast<float>(1 + i * 7919 % 1009));
    std::vector<float> want(static_cast<size_t>(rows * c));
    // The rows of an id from the k-th on, at most 64 of them.
    const auto sum = [&](int64_t id, int64_t k) {
      std::vector<float> total(static_cast<size_t>(c));
      for (int64_t i = 0, seen = 0; i < n; ++i) {
        if (ids[i] != id || seen++ < k || seen > k + kSegment) continue;
        for (int64_t channel = 0; channel < c; ++channel) total[channel] += dy[i * c + channel];
      }
      return total;
    };
    for (int64_t id = 0; id < rows; ++id) {
      const int64_t whole = counts[id] / kSegment * kSegment;
      std::vector<float> total = sum(id, whole);
      for (int64_t k = 0; k < whole; k += kSegment) {
        std::ranges::transform(total, sum(id, k), total.begin(), std::plus());
      }
      std::ranges::copy(total, want.begin() + id * c);
    }
    const Tensor gradient = Tensor::FromVector(dy, {n, c}, kGpu);
    const auto backward = [&](int64_t first, int64_t end, bool accumulate) {
      const Tensor sums = Tensor::Full({end - first, c}, accumulate ? 1.0 : NAN, DType::kF32, kGpu);
      embedding_backward(CurrentStream(kGpu), on_gpu, gradient, {.first = first, .of = rows}, sums,
                         accumulate);
      return sums.ToVector<float>();
    };
    EXPECT_EQ(backward(0, rows, false), want);
    for (const auto& [first, end] : {std::pair<int64_t, int64_t>(0, 3), {3, 6}, {6, 8}}) {
      EXPECT_EQ(backward(first, end, false),
                std::vector<float>(want.begin() + first * c, want.begin() + end * c));
    }
    std::vector<float> added = want;
    for (float& x : added) x += 1.0f;
    EXPECT_EQ(backward(0, rows, true), added);
  }
}

TEST_F(CudaKernels, TheMeanLossIsThatOfTheTargetsThatCount) {
  const Tensor logits = Tensor::Zeros({3, 4}, DType::kF32, kGpu);
  for (int ignored = 0; ignored < 3; ++ignored) {
    std::vector<int32_t> targets = {1, 3, 2};
    targets[static_cast<size_t>(ignored)] = -1;
    const Tensor loss =
        ops::SoftmaxCrossEntropy(logits, Tensor::FromVector<int32_t>(targets, {3}, kGpu));
    EXPECT_FLOAT_EQ(static_cast<float>(loss.Item()), std::log(4.0f)) << ignored;
  }
}

TEST_F(CudaKernels, AnUnknownTargetMakesTheLossNaN) {
  const Tensor logits = Tensor::Zeros({3, 4}, DType::kF32, kGpu);
  for (const int32_t unknown : {4, -2}) {
    const Tensor targets = Tensor::FromVector<int32_t>({1, unknown, -1}, {3}, kGpu);
    const std::vector<float> losses =
        ops::SoftmaxCrossEntropy(logits, targets, Reduction::kNone).ToVector<float>();
    EXPECT_FLOAT_EQ(losses[0], std::log(4.0f));
    EXPECT_TRUE(std::isnan(losses[1]));
    EXPECT_EQ(losses[2], 0);
  }
}

// What forward makes of the classes [begin, end) of 5, and joins of such parts.
class CudaLossParts : public CudaKernels {
 protected:
  struct Part {
    int64_t begin, end;
    Tensor losses, log_sum_exp;
  };

  void SetUp() override {
    CudaKernels::SetUp();
    if (IsSkipped()) return;
    for (size_t i = 0; i < targets_.size() * 5; ++i) {
      logits_.push_back(static_cast<float>(i * 7 % 11) / 4);
    }
    on_gpu_ = Tensor::FromVector(targets_, {Rows()}, kGpu);
  }
  int64_t Rows() const { return static_cast<int64_t>(targets_.size()); }

  Part Forward(int64_t begin, int64_t end) const {
    const Tensor logits = Tensor::FromVector(logits_, {Rows(), 5}, kGpu);
    Part part{begin, end, Tensor::Empty({Rows()}, DType::kF64, kGpu),
              Tensor::Empty({Rows()}, DType::kF64, kGpu)};
    cross_entropy_forward(CurrentStream(kGpu), {.logits = logits.Slice(1, begin, end).Contiguous(),
                                                .targets = on_gpu_,
                                                .part = {begin, 5},
                                                .losses = part.losses,
                                                .log_sum_exp = part.log_sum_exp});
    return part;
  }
  Part Join(const Part& a, const Part& b) const {
    cross_entropy_join(CurrentStream(kGpu), {.losses = a.losses,
                                             .log_sum_exp = a.log_sum_exp,
                                             .other_losses = b.losses,
                                             .other_log_sum_exp = b.log_sum_exp,
                                             .targets = on_gpu_,
                                             .begin = a.begin,
                                             .middle = b.begin,
                                             .end = b.end});
    return {a.begin, b.end, a.losses, a.log_sum_exp};
  }
  // Against the definition.
  void Check(const Part& part) const {
    const std::vector<double> losses = part.losses.ToVector<double>();
    const std::vector<double> log_sums = part.log_sum_exp.ToVector<double>();
    for (size_t i = 0; i < targets_.size(); ++i) {
      const int64_t target = targets_[i];
      double sum = 0;
      for (int64_t j = part.begin; j < part.end; ++j) sum += std::exp(logits_[i * 5 + j]);
      EXPECT_NEAR(log_sums[i], std::log(sum), 1e-5);
      if (target == -2 || target == 5) {
        EXPECT_TRUE(std::isnan(losses[i])) << "target " << target;
      } else {
        const bool in = target >= part.begin && target < part.end;
        EXPECT_NEAR(losses[i], in ? std::log(sum) - logits_[i * 5 + target] : 0, 1e-5)
            << "target " << target << " of classes " << part.begin << " to " << part.end;
      }
    }
  }

  const std::vector<int32_t> targets_ = {0, 1, 2, 3, 4, -1, -2, 5, 0};  // -1 is ignored
  std::vector<float> logits_;
  Tensor on_gpu_;
};

TEST_F(CudaLossParts, OfNeighboursJoinInAnyOrder) {
  for (const auto& [begin, end] : {std::pair(0, 2), {2, 3}, {3, 5}}) Check(Forward(begin, end));
  Check(Join(Forward(0, 2), Forward(2, 3)));
  Check(Join(Forward(2, 3), Forward(3, 5)));
  Check(Join(Join(Forward(0, 2), Forward(2, 3)), Forward(3, 5)));
  Check(Join(Forward(0, 2), Join(Forward(2, 3), Forward(3, 5))));
}

TEST_F(CudaKernels, AnUnknownTargetOfNllLossIsNaNAndHasNoGradient) {
  for (const int32_t unknown : {4, -2}) {
    const Tensor leaf = Tensor::Zeros({3, 4}, DType::kF32, kGpu).SetRequiresGrad();
    const Tensor targets = Tensor::FromVector<int32_t>({1, unknown, -1}, {3}, kGpu);
    const Tensor losses = ops::NllLoss(leaf, targets, Reduction::kNone, /*ignore_index=*/-1);
    ExpectSame(losses.Detach(), {0, NAN, 0});
    const Tensor root = Tensor::Full({3}, 1, DType::kF32, kGpu);
    Backward(std::span(&losses, 1), std::span(&root, 1));
    EXPECT_EQ(leaf.grad().ToVector<float>(),
              (std::vector<float>{0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  }
}

// As ranks without samples have them: counts, means and squares of nothing are zeros, and change
// nothing of what they are joined with.
TEST_F(CudaKernels, MomentsOfNothingAreZeros) {
  const std::vector<float> zeros(3 * 3);
  for (const Shape& shape : {Shape{0, 3, 4}, Shape{2, 3, 0}}) {
    const Tensor moments = Tensor::Full({3, 3}, 7, DType::kF32, kGpu);
    batch_norm_moments(CurrentStream(kGpu), Tensor::Zeros(shape, DType::kF32, kGpu), moments);
    EXPECT_EQ(moments.ToVector<float>(), zeros) << shape;
  }
  const auto join = [](const std::vector<float>& counts) {
    Tensor parts = Tensor::Zeros({static_cast<int64_t>(counts.size()), 3, 1}, DType::kF32);
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      parts.data<float>()[3 * i] = counts[i];
      parts.data<float>()[3 * i + 1] = 5;
      parts.data<float>()[3 * i + 2] = 2;
    }
    parts = parts.To(kGpu);
    const Tensor moments = Tensor::Full({3, 1}, 7, DType::kF32, kGpu);
    batch_norm_join(CurrentStream(kGpu), parts, moments);
    return moments.ToVector<float>();
  };
  EXPECT_EQ(join({0, 0}), std::vector<float>(3));
  EXPECT_EQ(join({0, 0, 0}), std::vector<float>(3));
  EXPECT_EQ(join({0, 0, 4, 0}), (std::vector<float>{4, 5, 2}));
  const Tensor sums = Tensor::Full({2, 3}, 7, DType::kF32, kGpu);
  batch_norm_add(CurrentStream(kGpu), Tensor::Zeros({0, 2, 3}, DType::kF32, kGpu), sums);
  EXPECT_EQ(sums.ToVector<float>(), std::vector<float>(2 * 3));
}

// Rows 0 to 1 and positions 0 to 2 are all that this cache has. Two tokens fit at positions 0
// and 1.
TEST_F(CudaKernels, APlaceOutsideOfTheCacheIsNeitherReadNorWritten) {
  const Tensor cache = Ascending(100, {2, 1, 3, 4}), x = Ascending(1, {1, 2, 1, 4});
  const auto index = [](int32_t value) { return Tensor::FromVector<int32_t>({value}, {1}, kGpu); };
  const auto before = cache.ToVector<float>();
  for (const auto& [row, position] :
       std::vector<std::pair<int32_t, int32_t>>{{2, 0}, {-1, 0}, {0, 2}, {1, -1}, {7, 9}}) {
    ops::StoreInCache(x, index(row), index(position), cache);
    EXPECT_EQ(cache.ToVector<float>(), before) << row << ", " << position;
    const NoGrad no_grad;
    for (const float y :
         ops::CachedAttention(x, cache, cache, index(row), index(position)).ToVector<float>())
      EXPECT_TRUE(std::isnan(y)) << row << ", " << position;
  }
  for (const auto& [row, position] : std::vector<std::pair<int32_t, int32_t>>{{0, 0}, {1, 1}}) {
    const auto old = cache.ToVector<float>();
    ops::StoreInCache(x, index(row), index(position), cache);
    EXPECT_NE(cache.ToVector<float>(), old) << row << ", " << position;
  }
}

// Memory of the simulated GPU comes in multiples of this: a tensor of this many bytes ends at a
// guard page.
constexpr int64_t kWholeBytes = 256;

// Integers, so that every sum is exact: by a warp, by a block, and down columns, the last of which
// end where the memory does.
TEST_F(CudaKernels, SumsAreAddedToWhatIsThere) {
  for (const Shape& shape : {Shape{3, 100, 1}, Shape{2, 1000, 1}, Shape{2, 5000, 1},
                             Shape{3, 20, 5}, Shape{1, kWholeBytes / 4, 5}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor x = Tensor::Full(shape, 1, DType::kF32, kGpu);
      const Tensor y = Tensor::Full({shape[0], shape[2]}, 8, dtype, kGpu);
      reduce_sum_slot(CurrentStream(kGpu), x, 2, y, /*accumulate=*/true);
      const Tensor want = Tensor::Full(y.shape(), 8 + 2 * static_cast<double>(shape[1]), dtype);
      EXPECT_EQ(y.To(DType::kF32).ToVector<float>(), want.To(DType::kF32).ToVector<float>())
          << shape << " " << dtype;
    }
  }
}

// Terms are added in blocks, which leaves an error of 3e-6. One by one, the last sum of a row would
// be wrong by 4e-5, and that of a column by 1e-3.
TEST_F(CudaKernels, RunningSumsOfManyTermsKeepTheirPrecision) {
  constexpr int64_t kTerms = 1 << 17;
  for (const bool rows : {true, false}) {
    const Tensor x =
        Tensor::Full(rows ? Shape{1, kTerms} : Shape{kTerms, 2}, 0.1, DType::kF32, kGpu);
    const std::vector<float> sums = ops::CumSum(x, rows ? 1 : 0).ToVector<float>();
    const double want = static_cast<double>(0.1f) * kTerms;
    EXPECT_NEAR(sums.back() / want, 1, 1e-5) << (rows ? "of a row" : "of a column");
  }
}

TEST_F(CudaKernels, AMaximumIsOneOfItsRow) {
  const Tensor x = Tensor::Zeros({2, 300}, DType::kF32);
  x.data<float>()[7] = 1;
  x.data<float>()[300] = 9;
  EXPECT_EQ(ops::Max(x.To(kGpu), {1}).ToVector<float>(), (std::vector<float>{1, 9}));
}

// Rows of whole packs, whose other operand has one number per row, is a transpose, or begins
// anywhere.
TEST_F(CudaKernels, OperandsOfAnyStridesAreAddedAsOnTheCpu) {
  const Tensor x = Ascending(0, {8, 16});
  for (const Tensor& y : {Ascending(1, {8, 1}), Ascending(2, {16, 8}).Transpose(0, 1),
                          Ascending(3, {8, 17}).Slice(1, 1, 17)}) {
    EXPECT_EQ(ops::Add(x, y).ToVector<float>(), ops::Add(x.To(kCpu), y.To(kCpu)).ToVector<float>())
        << y.Describe();
  }
}

TEST_F(CudaKernels, FillingAViewLeavesTheRest) {
  const Tensor x = Tensor::Zeros({4, 4}, DType::kF32, kGpu);
  x.Slice(0, 1, 3).Slice(1, 0, 2).Fill(5);
  EXPECT_EQ(x.ToVector<float>(),
            (std::vector<float>{0, 0, 0, 0, 5, 5, 0, 0, 5, 5, 0, 0, 0, 0, 0, 0}));
}

// All elements but one, with a pack's alignment and without: that one stays, and where the memory
// ends nothing past it is read.
TEST_F(CudaKernels, AnUpdateKeepsToItsTensors) {
  for (const int64_t begin : {0, 1}) {
    constexpr int64_t kWhole = kWholeBytes / 4;
    const auto whole = [](double value) {
      return Tensor::Full({kWhole}, value, DType::kF32, kGpu);
    };
    const Tensor all[] = {whole(1), /*grad=*/whole(7), whole(3), whole(4)};
    const auto part = [&](int i) { return all[i].Slice(0, begin, begin + kWhole - 1); };
    const UpdateTensors tensors{.value = part(0),
                                .grad = part(1),
                                .states = {part(2), part(3)},
                                .master = {},
                                .weight_decay = 0.1};
    StepState state(kGpu, 1);
    state.Begin(3, 0.01, {{0.9, 0.999}});
    ops::AdamWUpdate(std::span(&tensors, 1), {}, state);
    for (const int i : {0, 2, 3}) {
      const std::vector<float> now = all[i].ToVector<float>();
      const size_t beside = begin == 0 ? kWhole - 1 : 0;
      for (size_t at = 0; at < now.size(); ++at) {
        EXPECT_EQ(now[at] == static_cast<float>(i + 1), at == beside) << i << ", element " << at;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
