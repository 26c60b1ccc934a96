// Where heads are turned: in place if nothing else can see it.
#include "kernels/rotary_embedding/rotary_embedding.h"

#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/autograd/engine.h"
#include "kernels/scale/scale.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

constexpr int64_t kLength = 40, kHeads = 6, kSize = 16, kRotated = 4;

class RotaryInPlace : public test::DeviceTest {
 protected:
  void Prepare() override {
    std::vector<float> values;
    for (int64_t i = 0; i < 2 * kLength * kHeads * kSize; ++i) {
      values.push_back(static_cast<float>(i * 7919 % 1009) / 500 - 1);
    }
    x_ = Tensor::FromVector(values, {2, kLength, kHeads * kSize}, GetParam()).SetRequiresGrad();
    table_ = ops::RotaryTable(kLength, kSize, {}, DType::kF32, GetParam());
    heads_ = ops::Scale(x_, 0.5);
  }

  Tensor Turn(Tensor x) const { return ops::RotaryEmbedding(std::move(x), table_, kRotated); }
  // The most bytes that f takes beyond those that are live before it, in tensors like x.
  template <class F>
  double Peak(const F& f) const {
    Allocator& allocator = GetAllocator(GetParam());
    allocator.ResetPeak();
    const int64_t before = allocator.stats().live_bytes;
    f();
    return static_cast<double>(allocator.stats().peak_bytes - before) /
           static_cast<double>(x_.bytes());
  }
  std::vector<float> TakeGradient() const {
    const std::vector<float> gradient = x_.grad().ToVector<float>();
    x_.ZeroGrad();
    return gradient;
  }

  Tensor x_, table_, heads_;
};

TEST_P(RotaryInPlace, HeadsThatOthersHoldStayAsTheyAre) {
  const std::vector<float> before = heads_.Detach().ToVector<float>();
  Tensor copied, turned;
  EXPECT_GT(Peak([&] { copied = Turn(heads_); }), 0.9);
  EXPECT_EQ(heads_.Detach().ToVector<float>(), before);
  const std::vector<float> want = copied.Detach().ToVector<float>();
  EXPECT_NE(want, before);
  {
    const Tensor row = heads_.Detach().Slice(1, 2, 3);  // a view holds them as well
    const std::vector<float> of_row = row.ToVector<float>();
    Turn(std::move(heads_));
    EXPECT_EQ(row.ToVector<float>(), of_row);
    heads_ = ops::Scale(x_, 0.5);
  }
  EXPECT_LT(Peak([&] { turned = Turn(std::move(heads_)); }), 0.1);
  EXPECT_EQ(turned.Detach().ToVector<float>(), want);
}

TEST_P(RotaryInPlace, GradientsAreTheSameWhereverTheyAre) {
  // The gradient of the heads is that of their sum times 3.
  const auto loss = [&](Tensor heads) { return ops::Scale(Turn(std::move(heads)), 3); };
  const Tensor ones = Tensor::Full(x_.shape(), 1, DType::kF32, GetParam());
  const BackwardOptions retain{.retain_graph = true};
  const Tensor retained = loss(heads_);
  Backward(retained, ones, retain);
  const std::vector<float> want = TakeGradient();
  // Those of the two Scales, no third.
  EXPECT_LT(Peak([&] { Backward(retained, ones); }), 2.1);
  EXPECT_EQ(TakeGradient(), want);
  heads_ = ops::Scale(x_, 0.5);
  Backward(loss(std::move(heads_)), ones);
  EXPECT_EQ(TakeGradient(), want);
  // A gradient that the caller still holds.
  heads_ = ops::Scale(x_, 1);
  const Tensor root = Tensor::Full(x_.shape(), 3, DType::kF32, GetParam());
  Backward(Turn(std::move(heads_)), root);
  EXPECT_EQ(root.ToVector<float>(), std::vector<float>(static_cast<size_t>(x_.numel()), 3.0f));
}

INSTANTIATE_TEST_SUITE_P(Devices, RotaryInPlace, test::Devices());

}  // namespace
}  // namespace lockstep
