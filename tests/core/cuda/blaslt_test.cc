#include "core/cuda/blaslt.h"

#include <thread>

#include "core/cuda/handles.h"
#include "core/tensor.h"
#include "tests/core/cuda/support.h"

namespace lockstep::cuda {
namespace {

class BlasLtTest : public GpuTest {};

// A long sum for a small result: cuBLASLt adds up parts in a workspace. Two products at once on two
// streams, neither of which is the current one, must not share it.
TEST_F(BlasLtTest, TheWorkspaceBelongsToTheStreamOfTheProduct) {
  constexpr int64_t kSize = 16, kLong = 1 << 14;
  const Tensor x = Tensor::Full({kLong, kSize}, 1, DType::kF32, kGpu);
  const Tensor results[] = {Tensor::Zeros({kSize, kSize}, DType::kF32, kGpu),
                            Tensor::Zeros({kSize, kSize}, DType::kF32, kGpu)};
  const OwnedStream streams[] = {OwnedStream(kGpu), OwnedStream(kGpu)};
  Synchronize(CurrentStream(kGpu));
  for (int i = 0; i < 2; ++i) {
    BlasLtMatmul product{.transpose_b = true, .m = kSize, .n = kSize, .k = kLong};
    product.a = product.b = x.raw_data();
    product.d = results[i].raw_data();
    product.lda = product.ldb = product.ldd = kSize;
    ASSERT_TRUE(RunBlasLt(streams[i], product));
  }
  for (int i = 0; i < 2; ++i) {
    Synchronize(streams[i]);
    EXPECT_EQ(results[i].ToVector<float>(), std::vector<float>(kSize * kSize, kLong));
  }
}

// [1, k] x [k, 1], of f32.
BlasLtMatmul SumOfProducts(const Tensor& x, const Tensor& y, const Tensor& sum) {
  const int64_t k = x.numel();
  BlasLtMatmul product{.m = 1, .n = 1, .k = k};
  product.a = x.raw_data();
  product.b = y.raw_data();
  product.d = sum.raw_data();
  product.lda = product.ldd = 1;
  product.ldb = k;
  return product;
}

void ExpectSumOfOnes(int64_t k) {
  const Tensor ones = Tensor::Full({k}, 1, DType::kF32, kGpu);
  const Tensor sum = Tensor::Zeros({1}, DType::kF32, kGpu);
  ASSERT_TRUE(RunBlasLt(CurrentStream(kGpu), SumOfProducts(ones, ones, sum)));
  EXPECT_EQ(sum.ToVector<float>(), std::vector<float>{static_cast<float>(k)});
}

// A thread's first call of all is a product, on a device that is not the first, and what the second
// thread needs is there already: it sets its device all the same.
TEST_F(BlasLtTest, AnyThreadMultipliesOnAnyDevice) {
  if (DeviceCount() < 2) GTEST_SKIP() << "there is one GPU";
  const Tensor ones = Tensor::Full({4}, 1, DType::kF32, kSecondGpu);
  const Tensor sum = Tensor::Zeros({1}, DType::kF32, kSecondGpu);
  const Stream stream = CurrentStream(kSecondGpu);
  Synchronize(stream);
  for (int i = 0; i < 2; ++i) {
    bool done = false;
    std::thread([&] { done = RunBlasLt(stream, SumOfProducts(ones, ones, sum)); }).join();
    EXPECT_TRUE(done);
    EXPECT_EQ(sum.ToVector<float>(), std::vector<float>{4});
  }
}

// cuBLASLt is told of as much as it assumes by default: told of less, it leaves algorithms out. The
// stand-in refuses addresses that are less aligned than a plan was promised.
TEST_F(BlasLtTest, PlansKnowAlignmentsUpTo256Bytes) {
  constexpr int64_t kLong = 64;  // 256 bytes
  const Tensor x = Tensor::Full({4 * kLong}, 1, DType::kF32, kGpu);
  const Tensor sum = Tensor::Zeros({1}, DType::kF32, kGpu);
  const auto multiply = [&](int64_t offset) {
    const Tensor from = x.Slice(0, offset, offset + kLong + 1);  // a length of this test alone
    EXPECT_TRUE(RunBlasLt(CurrentStream(kGpu), SumOfProducts(from, from, sum)));
    EXPECT_EQ(sum.ToVector<float>(), std::vector<float>{kLong + 1});
    return NumBlasLtPlans(kGpu);
  };
  const size_t first = multiply(2 * kLong);
  EXPECT_EQ(multiply(kLong), first) << "256 and 512 bytes";
  size_t plans = first;
  for (const int64_t offset : {32, 16, 8, 4, 2, 1}) EXPECT_EQ(multiply(offset), ++plans);
  EXPECT_EQ(multiply(3 * kLong - 32), plans) << "of 128 bytes again";
}

TEST_F(BlasLtTest, APlanIsNotKeptForEachSizeOfALongLife) {
  for (size_t k = 1; k <= kMostBlasLtPlans + 100; ++k) {
    ExpectSumOfOnes(static_cast<int64_t>(k));
    ASSERT_LE(NumBlasLtPlans(kGpu), kMostBlasLtPlans);
  }
  EXPECT_EQ(NumBlasLtPlans(kGpu), kMostBlasLtPlans);
  ExpectSumOfOnes(1);
}

}  // namespace
}  // namespace lockstep::cuda
