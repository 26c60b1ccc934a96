// mma, ldmatrix and cp.async: products and attention against double precision.
#include <algorithm>
#include <cmath>

#include "cudasim/float_formats.h"
#include "tests/cudasim/device_buffer.h"
#include "tests/cudasim/kernels.h"

namespace lockstep {
namespace {

std::vector<uint16_t> Rounded(size_t n, uint32_t seed) {
  std::vector<uint16_t> values;
  for (float value : Numbers(n, seed)) values.push_back(cudasim::FloatToBf16(value));
  return values;
}
double Value(uint16_t bf16) { return cudasim::Bf16ToFloat(bf16); }
// Rounded to TF32, to nearest; ties go away from zero.
double Tf32(float x) {
  return cudasim::FloatFromBits((cudasim::FloatBits(x) + 0x1000u) & ~0x1fffu);
}

TEST(MmaTest, Product) {
  for (int K : {16, 64}) {
    const auto a = Rounded(16 * K, 1), bt = Rounded(8 * K, 2);
    const auto got = InAllOrders([&] {
      DeviceBuffer<uint16_t> da(a), db(bt);
      DeviceBuffer<float> c(16 * 8);
      EXPECT_EQ(RunMma(da.data(), db.data(), c.data(), K), cudaSuccess);
      return c.Read();
    });
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        double sum = 0;
        for (int k = 0; k < K; ++k) {
          sum += Value(a[i * K + k]) * Value(bt[j * K + k]);
        }
        EXPECT_NEAR(got[i * 8 + j], sum, 2e-6) << i << " " << j;
      }
    }
  }
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
          sum += Tf32(a[i * K + k]) * Tf32(bt[j * K + k]);
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
    DeviceBuffer<uint16_t> dq(q), dk(k), dv(v);
    DeviceBuffer<float> o(T * D);
    EXPECT_EQ(RunAttention(dq.data(), dk.data(), dv.data(), o.data(), T), cudaSuccess);
    return o.Read();
  });
  for (int i = 0; i < T; ++i) {
    std::vector<double> p(i + 1);
    double most = -1e30, sum = 0;
    for (int j = 0; j <= i; ++j) {
      for (int d = 0; d < D; ++d) {
        p[j] += Value(q[i * D + d]) * Value(k[j * D + d]) / 8;
      }
      most = std::max(most, p[j]);
    }
    for (double& x : p) sum += x = std::exp(x - most);
    for (int d = 0; d < D; ++d) {
      double expected = 0;
      for (int j = 0; j <= i; ++j) expected += p[j] / sum * Value(v[j * D + d]);
      // Probabilities are rounded to bf16.
      EXPECT_NEAR(got[i * D + d], expected, 0x1p-9) << i << " " << d;
    }
  }
}

}  // namespace
}  // namespace lockstep
