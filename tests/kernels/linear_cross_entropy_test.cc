// How much memory the chunked head takes, and where its gradients go.
#include "kernels/linear_cross_entropy/linear_cross_entropy.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "core/autograd/grad_mode.h"
#include "core/autograd/leaf.h"
#include "core/autograd/saved_tensor.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

using testing::FloatNear;
using testing::Pointwise;

constexpr int64_t kRows = 64, kWidth = 16, kClasses = 500, kChunk = 8;
constexpr int64_t kLogits = kRows * kClasses * 4;  // bytes, of all rows
constexpr int64_t kWeight = kClasses * kWidth * 4;

class LinearCrossEntropyTest : public test::DeviceTest {
 protected:
  void Prepare() override {
    x_ = Values({kRows, kWidth}, 2, DType::kF32);
    weight_ = Values({kClasses, kWidth}, 0.5, DType::kF32);
    std::vector<int32_t> targets;
    for (int32_t i = 0; i < kRows; ++i) targets.push_back(i * 31 % 50 - 1);  // -1: ignored
    targets_ = Tensor::FromVector(targets, {kRows}, GetParam());
    Loss(kChunk, Reduction::kSum);  // makes what is made once, such as a workspace
  }

  static Tensor Values(const Shape& shape, float largest, DType dtype) {
    std::vector<float> values;
    for (int64_t i = 0; i < shape.numel(); ++i) {
      values.push_back(largest * (static_cast<float>(i * 7919 % 1009) / 504.5f - 1));
    }
    return Tensor::FromVector(values, shape).To(dtype).To(GetParam()).SetRequiresGrad();
  }

  Tensor Loss(int64_t chunk, Reduction reduction = Reduction::kMean) const {
    return ops::LinearCrossEntropy(x_, weight_, targets_, reduction, chunk);
  }
  static std::vector<float> Floats(const Tensor& x) { return x.To(DType::kF32).ToVector<float>(); }
  std::vector<std::vector<float>> TakeGradients() const {
    std::vector<std::vector<float>> gradients = {Floats(x_.grad()), Floats(weight_.grad())};
    x_.ZeroGrad();
    weight_.ZeroGrad();
    return gradients;
  }
  // The most bytes that f takes beyond those that are live before it.
  template <class F>
  static int64_t Peak(const F& f) {
    Allocator& allocator = GetAllocator(GetParam());
    allocator.ResetPeak();
    const int64_t before = allocator.stats().live_bytes;
    f();
    return allocator.stats().peak_bytes - before;
  }

  Tensor x_, weight_, targets_;
};

TEST_P(LinearCrossEntropyTest, TheLogitsOfAllRowsAreNeverInMemory) {
  Tensor loss;
  EXPECT_GT(Peak([&] { Backward(Loss(0)); }), kLogits);
  TakeGradients();
  // A chunk, both gradients, a few numbers per row.
  EXPECT_LT(Peak([&] { loss = Loss(kChunk); }),
            kLogits * kChunk / kRows + kWeight + 3 * x_.bytes());
  // The gradients of the leaves, beside those that forward computed.
  EXPECT_LT(Peak([&] { Backward(loss); }), kWeight + 2 * x_.bytes());
  const NoGrad no_grad;
  EXPECT_LT(Peak([&] { Loss(kChunk); }), kLogits * kChunk / kRows + x_.bytes());
}

TEST_P(LinearCrossEntropyTest, ChunksChangeOnlyRounding) {
  const Tensor whole = Loss(0);
  Backward(whole);
  const auto want = TakeGradients();
  for (const int64_t chunk : {1, 7, 8, 32, 63}) {
    const Tensor loss = Loss(chunk);
    EXPECT_NEAR(loss.Item(), whole.Item(), 2e-6 * whole.Item()) << chunk;
    Backward(loss);
    const auto got = TakeGradients();
    EXPECT_THAT(got[0], Pointwise(FloatNear(1e-7f), want[0])) << chunk;
    EXPECT_THAT(got[1], Pointwise(FloatNear(1e-7f), want[1])) << chunk;
  }
}

// Any number of times, by any upstream gradient: what was saved is not scaled in place then.
TEST_P(LinearCrossEntropyTest, ARetainedGraphGivesTheSameGradientAgain) {
  const Tensor loss = Loss(kChunk);
  const BackwardOptions retain{.retain_graph = true};
  Backward(loss, {}, retain);
  const auto first = TakeGradients();
  Backward(loss, Tensor::Full({}, 4, DType::kF32, GetParam()), retain);
  auto fourfold = TakeGradients();
  for (auto& gradient : fourfold) {
    for (float& g : gradient) g /= 4;
  }
  EXPECT_EQ(fourfold, first);
  Backward(loss);
  EXPECT_EQ(TakeGradients(), first);
}

TEST_P(LinearCrossEntropyTest, GradientsThatOthersHoldAreNotWritten) {
  Tensor held;
  const SavedTensorHooks hooks(
      [&](const Tensor& t, const char*) {
        if (t.shape() == x_.shape()) held = t;
        return std::any(t);
      },
      [](const std::any& packed) { return std::any_cast<Tensor>(packed); });
  const Tensor loss = Loss(kChunk);
  const std::vector<float> before = held.ToVector<float>();
  Backward(loss, Tensor::Full({}, 3, DType::kF32, GetParam()));
  const auto copied = TakeGradients();
  EXPECT_EQ(held.ToVector<float>(), before);
  held = Tensor();
  Backward(Loss(kChunk), Tensor::Full({}, 3, DType::kF32, GetParam()));
  EXPECT_EQ(TakeGradients(), copied) << "the bits depend on who holds the gradient";
}

TEST_P(LinearCrossEntropyTest, TheWeightsGradientMayBeLeftForLater) {
  Backward(Loss(kChunk));
  const auto want = TakeGradients();
  const Leaf* weight = weight_.autograd()->leaf.get();
  DeferredGradients later;
  Backward(Loss(kChunk), {},
           {.defer = [&](const Leaf& leaf) { return &leaf == weight; }, .deferred = &later});
  EXPECT_FALSE(weight_.grad().defined());
  EXPECT_EQ(Floats(x_.grad()), want[0]);
  later.Run();
  EXPECT_EQ(TakeGradients(), want);
}

// The chunks' parts of it are added up in f32 and stay so.
TEST_P(LinearCrossEntropyTest, ABf16WeightHasAGradientOfF32) {
  x_ = Values({kRows, kWidth}, 2, DType::kBF16);
  weight_ = Values({kClasses, kWidth}, 0.5, DType::kBF16);
  weight_.autograd()->leaf->SetDType(DType::kF32);
  Backward(Loss(0));
  const auto want = TakeGradients();
  Backward(Loss(kChunk));
  ASSERT_EQ(weight_.grad().dtype(), DType::kF32);
  const std::vector<float> exact = Floats(weight_.grad());
  EXPECT_NE(Floats(weight_.grad().To(DType::kBF16)), exact);
  EXPECT_EQ(x_.grad().dtype(), DType::kBF16);
  // From probabilities that differ by a rounding to bf16: scaled before it, or after.
  EXPECT_THAT(exact, Pointwise(FloatNear(2e-3f), want[1]));
  Backward(Loss(kChunk));  // adds to that
  std::vector<float> twice = exact;
  for (float& g : twice) g *= 2;
  EXPECT_EQ(Floats(weight_.grad()), twice);
}

// Larger where that costs less than a layer's memory, and never less than 4096.
TEST(LossChunk, FollowsFromTheSizes) {
  EXPECT_EQ(ops::LossChunk(50304, 768, 64 * 1024), 16384);
  EXPECT_EQ(ops::LossChunk(50304, 768, 32 * 1024), 8192);
  EXPECT_EQ(ops::LossChunk(50304, 768, 16 * 1024), 4096);
  EXPECT_EQ(ops::LossChunk(128256, 4096, 8192), 4096);
  EXPECT_EQ(ops::LossChunk(65, 384, 64 * 256), 16384);
  for (const int64_t rows : {1, 1000, 20000, 1 << 20}) {
    const int64_t chunk = ops::LossChunk(32000, 2048, rows);
    EXPECT_GE(chunk, 4096);
    EXPECT_TRUE(chunk == 4096 || chunk * 32000 <= 20 * rows * 2048) << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LinearCrossEntropyTest, test::Devices());

}  // namespace
}  // namespace lockstep
