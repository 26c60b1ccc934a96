// Whose memory the gradient of the logits takes.
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "kernels/scale/scale.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 6, kClasses = 1000;

class CrossEntropyMemory : public test::DeviceTest {
 protected:
  void Prepare() override {
    std::vector<float> values;
    for (int64_t i = 0; i < kRows * kClasses; ++i) {
      values.push_back(static_cast<float>(i * 7919 % 1009) / 200);
    }
    x_ = Tensor::FromVector(values, {kRows, kClasses}, GetParam()).SetRequiresGrad();
    targets_ = Tensor::FromVector<int32_t>({0, 5, 999, 3, 3, 500}, {kRows}, GetParam());
  }

  // Not a leaf: only the caller holds them.
  Tensor Logits() const { return ops::Scale(x_, 0.5); }
  Tensor Loss(const Tensor& logits) const { return ops::SoftmaxCrossEntropy(logits, targets_); }
  std::vector<float> TakeGradient() const {
    const std::vector<float> gradient = x_.grad().ToVector<float>();
    x_.ZeroGrad();
    return gradient;
  }
  // What backward takes at its peak beyond what is live before it, in tensors of logits.
  double PeakOfBackward(const Tensor& loss) const {
    Allocator& allocator = GetAllocator(GetParam());
    allocator.ResetPeak();
    const int64_t before = allocator.stats().live_bytes;
    Backward(loss);
    return static_cast<double>(allocator.stats().peak_bytes - before) /
           static_cast<double>(x_.bytes());
  }

  Tensor x_, targets_;
};

TEST_P(CrossEntropyMemory, TheGradientTakesThePlaceOfLogitsThatNothingElseHolds) {
  // The gradient of x is one more tensor of the size in either case.
  const Tensor loss = Loss(Logits());  // the logits are gone at the semicolon
  EXPECT_LT(PeakOfBackward(loss), 1.1);
  const std::vector<float> in_place = TakeGradient();

  const Tensor logits = Logits();
  const std::vector<float> before = logits.Detach().ToVector<float>();
  EXPECT_GT(PeakOfBackward(Loss(logits)), 1.9);
  EXPECT_EQ(TakeGradient(), in_place) << "the bits depend on who holds the logits";
  EXPECT_EQ(logits.Detach().ToVector<float>(), before) << "logits that are held were written";
}

TEST_P(CrossEntropyMemory, AViewOfTheLogitsKeepsThem) {
  Tensor logits = Logits();
  const Tensor row = logits.Detach().Slice(0, 2, 3);
  const Tensor loss = Loss(logits);
  logits = Tensor();
  const std::vector<float> before = row.ToVector<float>();
  Backward(loss);
  EXPECT_EQ(row.ToVector<float>(), before);
}

TEST_P(CrossEntropyMemory, ARetainedGraphGivesTheSameGradientAgain) {
  const Tensor loss = Loss(Logits());
  const BackwardOptions retain{.retain_graph = true};
  Backward(loss, {}, retain);
  const std::vector<float> first = TakeGradient();
  Backward(loss, {}, retain);
  EXPECT_EQ(TakeGradient(), first);
  Backward(loss);
  EXPECT_EQ(TakeGradient(), first);
}

// While a row is in a cache, or a pass of its own: the same bits of all that is written.
TEST_P(CrossEntropyMemory, OnePassGivesTheGradientOfTwo) {
  const Stream stream = CurrentStream(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    // A block's size depends on the classes, and a pack's alignment.
    for (const int64_t classes : {7, 1000, 16384, 16391, 20480}) {
      SCOPED_TRACE(StrCat(dtype, " of ", classes, " classes"));
      const auto last = static_cast<int32_t>(classes - 1);
      const Tensor targets = Tensor::FromVector<int32_t>({0, last, -1, 3, last}, {5}, GetParam());
      std::vector<float> values;
      for (int64_t i = 0; i < 5 * classes; ++i) {
        values.push_back(static_cast<float>(i * 7919 % 1009) / 100);
      }
      const Tensor logits = Tensor::FromVector(values, {5, classes}).To(dtype).To(GetParam());
      const auto row = [&] { return Tensor::Empty({5}, DType::kF32, GetParam()); };
      const Tensor one = Tensor::Full({1}, 1, DType::kF32, GetParam());
      CrossEntropyForwardArgs two{
          .logits = logits, .targets = targets, .losses = row(), .log_sum_exp = row()};
      cross_entropy_forward(stream, two);
      const Tensor want = Tensor::EmptyLike(logits);
      const double z_loss = classes == 1000 ? 0.05 : 0;
      cross_entropy_backward(stream, {.logits = logits,
                                      .targets = targets,
                                      .log_sum_exp = two.log_sum_exp,
                                      .upstream = one,
                                      .scale = one,
                                      .dlogits = want,
                                      .z_loss = z_loss});
      for (const bool in_place : {false, true}) {
        const Tensor x = in_place ? logits.Clone() : logits;
        CrossEntropyForwardArgs fused{
            .logits = x, .targets = targets, .losses = row(), .log_sum_exp = row()};
        fused.dlogits = in_place ? x : Tensor::EmptyLike(x);
        fused.z_loss = z_loss;
        cross_entropy_forward(stream, fused);
        const auto floats = [](const Tensor& t) { return t.To(DType::kF32).ToVector<float>(); };
        EXPECT_EQ(floats(fused.dlogits), floats(want));
        EXPECT_EQ(floats(fused.losses), floats(two.losses));
        EXPECT_EQ(floats(fused.log_sum_exp), floats(two.log_sum_exp));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CrossEntropyMemory, test::Devices());

}  // namespace
}  // namespace lockstep
