// What the op suite does not reach on a GPU: ids and places that the host cannot be told of, and
// parts of ops that stand alone.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/autograd.h"
#include "core/engine.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/cached_attention/cached_attention.h"
#include "kernels/embedding/embedding.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

using test::kGpu;

class CudaKernels : public test::GpuTest {};

TEST_F(CudaKernels, AnUnknownIdGivesARowOfNaNsAndHasNoGradient) {
  const Tensor ids = Tensor::FromVector<int32_t>({1, -1, 0, 3, 1}, {5}, kGpu);
  const Tensor weight = Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {3, 2}, kGpu);
  const Tensor leaf = weight.Clone().SetRequiresGrad();
  const Tensor y = ops::Embedding(ids, leaf);
  const std::vector<float> values = y.ToVector<float>();
  const std::vector<float> want = {3, 4, NAN, NAN, 1, 2, NAN, NAN, 3, 4};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(values[i] == want[i] || (std::isnan(values[i]) && std::isnan(want[i]))) << i;
  }
  const Tensor root = Tensor::Full({5, 2}, 1, DType::kF32, kGpu);
  Backward(std::span(&y, 1), std::span(&root, 1));
  EXPECT_EQ(leaf.grad().ToVector<float>(), (std::vector<float>{1, 1, 2, 2, 0, 0}));
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
  const auto from = [](float first, const Shape& shape) {
    std::vector<float> values(static_cast<size_t>(shape.numel()));
    std::iota(values.begin(), values.end(), first);
    return Tensor::FromVector(values, shape, kGpu);
  };
  const Tensor cache = from(100, {2, 1, 3, 4}), x = from(1, {1, 2, 1, 4});
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

}  // namespace
}  // namespace lockstep
