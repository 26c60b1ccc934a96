// Walks over views of more elements than any other test has memory for.
#include <gtest/gtest.h>

#include <random>

#include "core/cuda/launch.h"
#include "kernels/cuda/grid.cuh"
#include "kernels/strided.h"
#include "tests/gpu_test.h"

namespace lockstep::cuda {
namespace {

using test::kGpu;

class Strided : public test::GpuTest {};

__global__ void OffsetsKernel(StridedDims<2> dims, const int64_t* indices, int64_t n,
                              int64_t* offsets) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[2];
  dims.Offsets(indices[i], at);
  for (int k = 0; k < 2; ++k) offsets[2 * i + k] = at[k];
}

// Neighbours that merge into one dimension of more than 2^32 elements, by which 32 bits cannot
// divide.
TEST_F(Strided, SizesBeyond32Bits) {
  constexpr int64_t kWide = (int64_t{1} << 32) + 5;
  const Shape shape{2, kWide}, strides[2] = {{kWide, 1}, {3, 0}};
  const std::vector<int64_t> indices = {0, 6, kWide - 1, kWide, kWide + 7};
  const auto n = std::ssize(indices);
  const Tensor in = Tensor::FromVector(indices, {n}, kGpu);
  const Tensor out = Tensor::Zeros({n, 2}, DType::kI64, kGpu);
  Launch("offsets", OffsetsKernel, 1, 64, 0, CurrentStream(kGpu), StridedDims<2>(shape, strides),
         in.data<int64_t>(), n, out.data<int64_t>());
  EXPECT_EQ(out.ToVector<int64_t>(),
            (std::vector<int64_t>{0, 0, 6, 0, kWide - 1, 0, kWide, 3, kWide + 7, 3}));
}

TEST_F(Strided, OffsetsFollowFromIndicesBeyond32Bits) {
  const Shape shape{6, 5, int64_t{1} << 28, 3}, strides[2] = {{1, 600, 7, 100}, {90, 0, 11, 5}};
  constexpr int64_t kLimit = UINT32_MAX;
  std::vector<int64_t> indices = {0, 1, 3, kLimit - 1, kLimit, kLimit + 1, shape.numel() - 1};
  std::mt19937_64 random(1);
  std::uniform_int_distribution<int64_t> any(0, shape.numel() - 1), small(0, kLimit);
  for (int i = 0; i < 100; ++i) {
    indices.push_back(any(random));
    indices.push_back(small(random));
  }
  const auto n = std::ssize(indices);
  const Tensor in = Tensor::FromVector(indices, {n}, kGpu);
  const Tensor out = Tensor::Zeros({n, 2}, DType::kI64, kGpu);
  Launch("offsets", OffsetsKernel, static_cast<unsigned>(DivideUp(n, 64)), 64, 0,
         CurrentStream(kGpu), StridedDims<2>(shape, strides), in.data<int64_t>(), n,
         out.data<int64_t>());
  const std::vector<int64_t> offsets = out.ToVector<int64_t>();
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t k = 0; k < 2; ++k) {
      int64_t rest = indices[i], expected = 0;
      for (int d = shape.ndim() - 1; d >= 0; --d) {
        expected += rest % shape[d] * strides[k][d];
        rest /= shape[d];
      }
      EXPECT_EQ(offsets[2 * i + k], expected) << "element " << indices[i] << ", tensor " << k;
    }
  }
}

}  // namespace
}  // namespace lockstep::cuda
