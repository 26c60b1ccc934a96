// The counterparts of mma, ldmatrix and cp.async: products and attention against double precision.
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>

#include "tests/cudasim/device_buffer.h"
#include "tests/cudasim/kernels.h"

namespace lockstep {
namespace {

std::vector<__nv_bfloat16> Rounded(size_t n, uint32_t seed) {
  std::vector<__nv_bfloat16> values;
  for (float value : Numbers(n, seed)) values.push_back(__float2bfloat16(value));
  return values;
}

TEST(MmaTest, Product) {
  for (int K : {16, 64}) {
    const auto a = Rounded(16 * K, 1), bt = Rounded(8 * K, 2);
    const auto got = InAllOrders([&] {
      DeviceBuffer<__nv_bfloat16> da(a), db(bt);
      DeviceBuffer<float> c(16 * 8);
      EXPECT_EQ(RunMma(da.data(), db.data(), c.data(), K), cudaSuccess);
      return c.Read();
    });
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        double sum = 0;
        for (int k = 0; k < K; ++k) {
          sum += static_cast<double>(a[i * K + k].ToFloat()) * bt[j * K + k].ToFloat();
        }
        EXPECT_NEAR(got[i * 8 + j], sum, 2e-6) << i << " " << j;
      }
    }
  }
}

TEST(MmaTest, RoundsToTf32) {
  const auto bits = [](float x) { return cudasim::FloatFromBits(cudasim::ToTf32(x)); };
  EXPECT_EQ(bits(1.0f), 1.0f);
  EXPECT_EQ(bits(1 + 0x1.8p-11f), 1 + 0x1p-10f);
  EXPECT_EQ(bits(1 + 0x1p-11f), 1 + 0x1p-10f);  // ties go away from zero
  EXPECT_EQ(bits(-1 - 0x1p-11f), -1 - 0x1p-10f);
  EXPECT_EQ(bits(1 + 0x1.fp-12f), 1.0f);
  EXPECT_EQ(bits(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(bits(cudasim::FloatFromBits(0x7fffffffu))));
}

TEST(MmaTest, ProductInTf32) {
  for (int K : {8, 40}) {
    const auto a = Numbers(16 * K, 1), bt = Numbers(8 * K, 2);
    const auto got = InAllOrders([&] {
      DeviceBuffer<float> da(a), db(bt), c(16 * 8);
      EXPECT_EQ(RunMmaTf32(da.data(), db.data(), c.data(), K), cudaSuccess);
      return c.Read();
    });
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        double sum = 0;
        for (int k = 0; k < K; ++k) {
          sum += static_cast<double>(cudasim::FloatFromBits(cudasim::ToTf32(a[i * K + k]))) *
                 cudasim::FloatFromBits(cudasim::ToTf32(bt[j * K + k]));
        }
        EXPECT_NEAR(got[i * 8 + j], sum, 2e-6) << i << " " << j;
      }
    }
  }
}

TEST(MmaTest, Attention) {
  const int T = 64, D = 64;
  const auto q = Rounded(T * D, 3), k = Rounded(T * D, 4), v = Rounded(T * D, 5);
  const auto got = InAllOrders([&] {
    DeviceBuffer<__nv_bfloat16> dq(q), dk(k), dv(v);
    DeviceBuffer<float> o(T * D);
    EXPECT_EQ(RunAttention(dq.data(), dk.data(), dv.data(), o.data(), T), cudaSuccess);
    return o.Read();
  });
  for (int i = 0; i < T; ++i) {
    std::vector<double> p(i + 1);
    double most = -1e30, sum = 0;
    for (int j = 0; j <= i; ++j) {
      for (int d = 0; d < D; ++d) {
        p[j] += static_cast<double>(q[i * D + d].ToFloat()) * k[j * D + d].ToFloat() / 8;
      }
      most = std::max(most, p[j]);
    }
    for (double& x : p) sum += x = std::exp(x - most);
    for (int d = 0; d < D; ++d) {
      double expected = 0;
      for (int j = 0; j <= i; ++j) expected += p[j] / sum * v[j * D + d].ToFloat();
      // Probabilities are rounded to bf16.
      EXPECT_NEAR(got[i * D + d], expected, 0x1p-9) << i << " " << d;
    }
  }
}

}  // namespace
}  // namespace lockstep
