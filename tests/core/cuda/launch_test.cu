#include <gmock/gmock-matchers.h>

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/shared.cuh"
#include "tests/core/cuda/support.h"

namespace lockstep::cuda {
namespace {

using testing::HasSubstr;

__global__ void AddKernel(const float* x, float value, int64_t n, float* y) {
  const int64_t i = GlobalThread();
  if (i < n) y[i] = x[i] + value;
}

// y[i] = x[n - 1 - i], through shared memory.
__global__ void ReverseKernel(const float* x, int n, float* y) {
  DYN_SHARED(float, tile);
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    tile[i] = x[i];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    y[i] = tile[n - 1 - i];
  }
}

class LaunchTest : public GpuTest {
 protected:
  static Stream stream() { return CurrentStream(kGpu); }
  // The text of the CudaError that `f` throws.
  template <class F>
  std::string ErrorOf(const F& f) {
    try {
      f();
    } catch (const CudaError& error) {
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }
};

TEST_F(LaunchTest, ConvertsArgumentsAndRunsTheGrid) {
  const Tensor x = Tensor::FromVector<float>({1, 2, 3, 4, 5}, {5}, kGpu);
  const Tensor y = Tensor::Zeros({5}, DType::kF32, kGpu);
  Launch("add", AddKernel, 3, 2, 0, stream(), x.data<float>(), 0.5, 5, y.data<float>());
  EXPECT_EQ(y.ToVector<float>(), (std::vector<float>{1.5, 2.5, 3.5, 4.5, 5.5}));
}

TEST_F(LaunchTest, AGridWithoutBlocksIsNothingToDo) {
  Launch("add", AddKernel, 0, 2, 0, stream(), nullptr, 1.0f, 0, nullptr);
  Launch("add", AddKernel, dim3(4, 0), 2, 0, stream(), nullptr, 1.0f, 0, nullptr);
  Synchronize(stream());
}

TEST_F(LaunchTest, AllowsMoreSharedMemoryThanEveryKernelHas) {
  const int n = 20000;  // 80 KB
  std::vector<float> values(n), reversed(n);
  for (int i = 0; i < n; ++i) values[i] = reversed[n - 1 - i] = static_cast<float>(i);
  const Tensor x = Tensor::FromVector(values, {n}, kGpu), y = Tensor::EmptyLike(x);
  Launch({"reverse", x}, ReverseKernel, 1, 128, n * sizeof(float), stream(), x.data<float>(), n,
         y.data<float>());
  EXPECT_EQ(y.ToVector<float>(), reversed);
}

TEST_F(LaunchTest, ErrorsNameOperationShapesAndGrid) {
  const Tensor x = Tensor::Zeros({2, 3}, DType::kF32, kGpu);
  const std::string text = ErrorOf([&] {
    Launch({"add_forward", x, x}, AddKernel, dim3(3, 1, 2), 4096, 0, stream(), x.data<float>(),
           1.0f, 6, x.data<float>());
  });
  EXPECT_THAT(text, HasSubstr(StrCat("launch of add_forward(f32[2, 3] on ", kGpu, ", f32[2, 3] on ",
                                     kGpu, ") on ", kGpu)));
  EXPECT_THAT(text,
              HasSubstr("with grid (3, 1, 2), block (4096, 1, 1), 0 bytes of dynamic shared"));
  EXPECT_THAT(text, HasSubstr("cudaErrorInvalid"));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next call is not blamed";
}

TEST_F(LaunchTest, TooMuchSharedMemoryIsAnErrorOfTheOperation) {
  const Tensor x = Tensor::Zeros({2}, DType::kF32, kGpu);
  EXPECT_THAT(ErrorOf([&] {
                Launch({"reverse", x}, ReverseKernel, 1, 32, size_t{1} << 20, stream(),
                       x.data<float>(), 2, x.data<float>());
              }),
              HasSubstr("reverse(f32[2] on"));
}

TEST(BlocksTest, RoundsUpAndRefusesWhatNoGridHas) {
  EXPECT_EQ(Blocks(0, 256), 0u);
  EXPECT_EQ(Blocks(1, 256), 1u);
  EXPECT_EQ(Blocks(257, 256), 2u);
  EXPECT_THROW(Blocks(int64_t{1} << 32, 1), ArgumentError);
}

}  // namespace
}  // namespace lockstep::cuda
