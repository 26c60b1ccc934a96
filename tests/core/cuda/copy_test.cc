// Copies that the op's case does not cover: between host and device, and between two devices.
#include <gtest/gtest.h>

#include "core/tensor.h"
#include "tests/core/cuda/support.h"

namespace lockstep::cuda {
namespace {

class CudaCopyTest : public GpuTest {};

// 0, 1, 2, ... [rows, columns] as seen through a transposed slice of something larger.
Tensor Strided(int64_t rows, int64_t columns, DType dtype, Device device) {
  const Tensor base = Tensor::Zeros({columns, rows + 3}, dtype, device);
  return base.Slice(1, 2, rows + 2).Transpose(0, 1);
}

Tensor Counting(int64_t rows, int64_t columns, DType dtype) {
  std::vector<double> values;
  for (int64_t i = 0; i < rows * columns; ++i) values.push_back(static_cast<double>(i % 200));
  return Tensor::FromVector(values, {rows, columns}).To(dtype);
}

std::vector<double> Values(const Tensor& x) {
  return x.To(kCpu).To(DType::kF64).ToVector<double>();
}

// Every pair of devices, of dtypes and of layouts.
TEST_F(CudaCopyTest, BetweenAllPlaces) {
  const Device places[] = {kCpu, kGpu, DeviceCount() > 1 ? kSecondGpu : kGpu};
  const DType dtypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI64,
                          DType::kI32, DType::kU8,   DType::kF64};
  const std::vector<double> want = Values(Counting(5, 7, DType::kF64));
  for (Device from : places) {
    for (Device to : places) {
      for (DType from_dtype : dtypes) {
        for (DType to_dtype : dtypes) {
          for (int layouts = 0; layouts < 4; ++layouts) {
            Tensor source = Counting(5, 7, from_dtype).To(from);
            if (layouts & 1) {
              const Tensor strided = Strided(5, 7, from_dtype, from);
              strided.CopyFrom(source);
              source = strided;
            }
            const Tensor target =
                layouts & 2 ? Strided(5, 7, to_dtype, to) : Tensor::Zeros({5, 7}, to_dtype, to);
            target.CopyFrom(source);
            ASSERT_EQ(Values(target), want)
                << source.Describe() << " to " << target.Describe() << ", layouts " << layouts;
          }
        }
      }
    }
  }
}

TEST_F(CudaCopyTest, OnlyTheElementsOfAViewAreWritten) {
  const Tensor base = Tensor::Full({4, 6}, -1, DType::kF32, kGpu);
  base.Slice(1, 1, 5).Slice(0, 1, 3).CopyFrom(Tensor::Full({2, 4}, 5, DType::kF32));
  std::vector<float> want(24, -1);
  for (int r : {1, 2}) {
    for (int c = 1; c < 5; ++c) want[r * 6 + c] = 5;
  }
  EXPECT_EQ(base.ToVector<float>(), want);
}

// Rows whose size is a multiple of 16, 8, 4 or 2 bytes are copied by accesses of that size, from
// the first aligned address.
TEST_F(CudaCopyTest, WideAccessesOfViews) {
  for (int64_t columns : {8, 4, 2, 6, 1, 3}) {
    for (int64_t offset : {0, 1, 2, 4, 8}) {
      const Tensor base = Counting(6, 32, DType::kBF16).To(kGpu);
      const Tensor view = base.Slice(1, offset, offset + columns);
      EXPECT_EQ(Values(view.Contiguous()),
                Values(Counting(6, 32, DType::kBF16).Slice(1, offset, offset + columns)))
          << columns << " columns from " << offset;
    }
  }
}

TEST_F(CudaCopyTest, ExactWhereAFloatIsNot) {
  const int64_t big = (int64_t{1} << 62) + 1;
  const Tensor x = Tensor::FromVector<int64_t>({big, -big}, {2, 1}, kGpu);
  const Tensor strided = Strided(2, 1, DType::kI64, kGpu);
  strided.CopyFrom(x);
  EXPECT_EQ(strided.ToVector<int64_t>(), (std::vector<int64_t>{big, -big}));
}

}  // namespace
}  // namespace lockstep::cuda
