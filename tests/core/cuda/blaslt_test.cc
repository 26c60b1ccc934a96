#include "core/cuda/blaslt.h"

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

}  // namespace
}  // namespace lockstep::cuda
