// Attention by ops at masks that its OpCase does not draw, with dropout, and in CUDA graphs.
#include "kernels/masked_attention/masked_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/autograd/engine.h"
#include "core/cuda/graph_space.h"
#include "core/step_state.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> Floats(const Tensor& x) { return x.To(DType::kF32).ToVector<float>(); }

class MaskedAttention : public test::DeviceTest {
 protected:
  Tensor Of(const std::vector<float>& values, const Shape& shape, DType dtype = DType::kF32) const {
    return Tensor::FromVector(values, shape, GetParam()).To(dtype);
  }
};

// -infinity hides a key as a mask does, but a query without any key is NaN.
TEST_P(MaskedAttention, MasksOfAttention) {
  const Tensor q = Of({1, 2, -1, 3}, {1, 2, 1, 2}), k = Of({1, 0, 2, 1, 0, 4}, {1, 3, 1, 2});
  const Tensor v = Of({5, 7, 11}, {1, 3, 1, 1});
  const auto with = [&](const Tensor& mask) { return ops::Attention(q, k, v, {.mask = mask}); };
  const Tensor seen = Of({1, 0, 1, 0, 1, 0}, {2, 3}).To(DType::kBool);
  const std::vector<float> hidden = Floats(with(seen));
  const std::vector<float> added = Floats(with(Of({0, -kInf, 0, -kInf, 0, -kInf}, {2, 3})));
  ASSERT_EQ(hidden.size(), added.size());
  for (size_t i = 0; i < hidden.size(); ++i) EXPECT_FLOAT_EQ(hidden[i], added[i]);
  EXPECT_FLOAT_EQ(hidden[1], 7);
  const Tensor none = Of({-kInf, -kInf, -kInf, -kInf, 0, -kInf}, {2, 3});
  EXPECT_TRUE(std::isnan(Floats(with(none))[0]));
  EXPECT_FLOAT_EQ(Floats(with(none))[1], 7);
  EXPECT_EQ(Floats(with(Of({0, 0, 0, 0, 1, 0}, {2, 3}).To(DType::kBool)))[0], 0);
}

// A row that a mask and causality leave empty, in 16 bits: no NaN in any gradient.
TEST_P(MaskedAttention, EmptyRowsOfAttentionHaveNoGradient) {
  const Tensor seen = Of({0, 1, 1, 0, 1, 1, 1, 1, 1}, {3, 3}).To(DType::kBool);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor x = Of({1, 2, -1, 3, 0.5, -2}, {1, 3, 1, 2}, dtype);
    const auto attend = [&](const Tensor& leaf) {
      return ops::Attention(leaf, leaf, leaf, {.mask = seen, .causal = true});
    };
    const std::vector<float> y = Floats(attend(x));
    EXPECT_EQ(y[0], 0) << dtype;  // may see only itself, which is hidden
    EXPECT_EQ(y[1], 0) << dtype;
    EXPECT_EQ(y[2], -1) << dtype;  // sees only itself
    Tensor leaf = x.Clone().SetRequiresGrad();
    const Tensor out = attend(leaf);
    Backward(out, Tensor::Full(out.shape(), 1, dtype, out.device()));
    for (const float g : Floats(leaf.grad())) EXPECT_TRUE(std::isfinite(g)) << dtype;
  }
}

TEST_P(MaskedAttention, DropoutOfAttentionIsItsSites) {
  const Tensor x = Of(std::vector<float>(2 * 8 * 2 * 4, 0.5), {2, 8, 2, 4});
  const Tensor seen = Tensor::Full({8, 8}, 1, DType::kBool, GetParam());
  const StepState state(GetParam(), 7);
  const TrainingScope training(state);
  const auto with = [&](double dropout, uint64_t site) {
    return Floats(ops::Attention(x, x, x, {.mask = seen, .dropout = dropout, .site = site}));
  };
  EXPECT_EQ(with(0.5, 1), with(0.5, 1));
  EXPECT_NE(with(0.5, 1), with(0.5, 2));
  EXPECT_NE(with(0.5, 1), with(0, 1));
}

TEST(MaskedAttentionMeta, HasTheShapeOfQueriesWithAMask) {
  const Device meta{DeviceType::kMeta, 0};
  const Tensor q = Tensor::Empty({2, 3, 4, 5}, DType::kBF16, meta);
  const Tensor k = Tensor::Empty({2, 7, 2, 5}, DType::kBF16, meta);
  const Tensor v = Tensor::Empty({2, 7, 2, 6}, DType::kBF16, meta);
  const Tensor mask = Tensor::Empty({3, 7}, DType::kBool, meta);
  const Tensor y = ops::Attention(q, k, v, {.mask = mask, .causal = true});
  EXPECT_EQ(y.shape(), (Shape{2, 3, 4, 6}));
  EXPECT_EQ(y.dtype(), DType::kBF16);
}

INSTANTIATE_TEST_SUITE_P(, MaskedAttention, test::Devices(), [](const auto& info) {
  return std::string(info.param.is_cpu() ? "Cpu" : "Gpu");
});

class AttentionGraph : public test::GpuTest {};

// Nothing comes from the host, so that a CUDA graph can capture it.
TEST_F(AttentionGraph, CausalAttentionIsCaptured) {
  if (!cuda::GraphSpace::Supported(test::kGpu)) {
    GTEST_SKIP() << "no caching allocator in this build";
  }
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4}, {1, 2, 1, 2}, test::kGpu);
  const NoGrad no_grad;
  cuda::GraphSpace space(test::kGpu);
  Tensor y;
  cuda::Graph graph = space.Capture([&] { y = ops::Attention(x, x, x, {.causal = true}); });
  const std::vector<float> other = {4, 3, 2, 1};
  x.CopyFrom(Tensor::FromVector(other, x.shape()));
  graph.Launch(CurrentStream(test::kGpu));
  EXPECT_EQ(Floats(y), Floats(ops::Attention(x, x, x, {.causal = true})));
}

}  // namespace
}  // namespace lockstep
