// Typical kernels against references, with the same bits in every order of threads and blocks.
#include "tests/cudasim/kernels.h"

#include <cmath>

#include "tests/cudasim/device_buffer.h"

namespace lockstep {
namespace {

TEST(KernelsTest, Saxpy) {
  for (int n : {1, 127, 128, 129, 1000}) {
    const auto x = Numbers(n, 1), y = Numbers(n, 2);
    const auto got = InAllOrders([&] {
      DeviceBuffer<float> dx(x), dy(y);
      EXPECT_EQ(RunSaxpy(dx.data(), dy.data(), 0.5f, n), cudaSuccess);
      return dy.Read();
    });
    for (int i = 0; i < n; ++i) EXPECT_EQ(got[i], std::fma(0.5f, x[i], y[i])) << i;
  }
}

TEST(KernelsTest, SaxpyByVectors) {
  const int n = 4 * 501;
  const auto x = Numbers(n, 1), y = Numbers(n, 2);
  const auto got = InAllOrders([&] {
    DeviceBuffer<float> dx(x), dy(y);
    EXPECT_EQ(RunSaxpyVector(dx.data(), dy.data(), -2.0f, n), cudaSuccess);
    return dy.Read();
  });
  for (int i = 0; i < n; ++i) EXPECT_EQ(got[i], std::fma(-2.0f, x[i], y[i])) << i;
}

TEST(KernelsTest, BlockSum) {
  const int n = 1000;
  const auto x = Numbers(n, 3);
  const auto got = InAllOrders([&] {
    DeviceBuffer<float> dx(x), out(4);
    EXPECT_EQ(RunBlockSum(dx.data(), out.data(), n), cudaSuccess);
    return out.Read();
  });
  for (int b = 0; b < 4; ++b) {
    double sum = 0;
    for (int i = 256 * b; i < std::min(n, 256 * b + 256); ++i) sum += x[i];
    EXPECT_NEAR(got[b], sum, 1e-5) << b;
  }
}

TEST(KernelsTest, Scan) {
  for (int n : {1, 31, 256, 1000, 1024}) {
    std::vector<int> x(n);
    for (int i = 0; i < n; ++i) x[i] = i * i % 17 - 8;
    const auto got = InAllOrders([&] {
      DeviceBuffer<int> dx(x), out(n);
      EXPECT_EQ(RunScan(dx.data(), out.data(), n), cudaSuccess);
      return out.Read();
    });
    int sum = 0;
    for (int i = 0; i < n; ++i) EXPECT_EQ(got[i], sum += x[i]) << i;
  }
}

TEST(KernelsTest, Transpose) {
  const int rows = 45, columns = 70;
  const auto x = Numbers(rows * columns, 4);
  const auto got = InAllOrders([&] {
    DeviceBuffer<float> dx(x), out(rows * columns);
    EXPECT_EQ(RunTranspose(dx.data(), out.data(), rows, columns), cudaSuccess);
    return out.Read();
  });
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) EXPECT_EQ(got[c * rows + r], x[r * columns + c]);
  }
}

TEST(KernelsTest, LayerNorm) {
  for (int threads : {32, 256, 1024}) {
    const int rows = 7, C = 300;
    const auto x = Numbers(rows * C, 5);
    const auto got = InAllOrders([&] {
      DeviceBuffer<float> dx(x), y(rows * C);
      EXPECT_EQ(RunLayerNorm(dx.data(), y.data(), rows, C, threads), cudaSuccess);
      return y.Read();
    });
    for (int r = 0; r < rows; ++r) {
      double mean = 0, variance = 0;
      for (int i = 0; i < C; ++i) mean += x[r * C + i] / static_cast<double>(C);
      for (int i = 0; i < C; ++i) variance += std::pow(x[r * C + i] - mean, 2) / C;
      for (int i = 0; i < C; ++i) {
        EXPECT_NEAR(got[r * C + i], (x[r * C + i] - mean) / std::sqrt(variance + 1e-5), 2e-6);
      }
    }
  }
}

TEST(KernelsTest, Matmul) {
  const int M = 37, N = 50, K = 41;
  const auto a = Numbers(M * K, 6), b = Numbers(K * N, 7);
  const auto got = InAllOrders([&] {
    DeviceBuffer<float> da(a), db(b), c(M * N);
    EXPECT_EQ(RunMatmul(da.data(), db.data(), c.data(), M, N, K), cudaSuccess);
    return c.Read();
  });
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < N; ++j) {
      double sum = 0;
      for (int k = 0; k < K; ++k) sum += static_cast<double>(a[i * K + k]) * b[k * N + j];
      EXPECT_NEAR(got[i * N + j], sum, 1e-5);
    }
  }
}

TEST(KernelsTest, Histogram) {
  std::vector<uint8_t> x(10000);
  std::vector<unsigned> counts(256);
  for (size_t i = 0; i < x.size(); ++i) ++counts[x[i] = static_cast<uint8_t>(i * i * 7 / 5)];
  const auto got = InAllOrders([&] {
    DeviceBuffer<uint8_t> dx(x);
    DeviceBuffer<unsigned> out(std::vector<unsigned>(256));
    EXPECT_EQ(RunHistogram(dx.data(), out.data(), static_cast<int>(x.size())), cudaSuccess);
    return out.Read();
  });
  EXPECT_EQ(got, counts);
}

TEST(KernelsTest, SumWhoseLastBlockAddsUp) {
  const int n = 3000;
  const auto x = Numbers(n, 8);
  double sum = 0;
  for (float value : x) sum += value;
  const auto got = InAllOrders([&] {
    DeviceBuffer<float> dx(x), partials(24), out(1);
    DeviceBuffer<unsigned> counter(std::vector<unsigned>(1));
    EXPECT_EQ(RunLastBlockSum(dx.data(), partials.data(), counter.data(), out.data(), n),
              cudaSuccess);
    return out.Read();
  });
  EXPECT_NEAR(got[0], sum, 1e-5);
}

TEST(KernelsTest, VotesOfABlock) {
  for (int set : {0, 1, 99, 100}) {
    std::vector<int> predicates(100);
    for (int i = 0; i < set; ++i) predicates[(i * 37 + 5) % 100] = i + 1;
    const auto got = InAllOrders([&] {
      DeviceBuffer<int> p(predicates), out(3);
      EXPECT_EQ(RunBlockVotes(p.data(), out.data(), 100), cudaSuccess);
      return out.Read();
    });
    EXPECT_EQ(got, (std::vector<int>{set, set == 100, set != 0}));
  }
}

TEST(KernelsTest, IndicesInThreeDimensions) {
  const dim3 grid(3, 2, 2), block(5, 4, 3);
  const auto got = InAllOrders([&] {
    DeviceBuffer<unsigned> out(6 * 12 * 60);
    EXPECT_EQ(RunIndices(grid, block, out.data()), cudaSuccess);
    return out.Read();
  });
  size_t at = 0;
  for (unsigned b = 0; b < 12; ++b) {
    for (unsigned t = 0; t < 60; ++t) {
      const unsigned expected[6] = {t % 5, t / 5 % 4, t / 20, b % 3, b / 3 % 2, b / 6};
      for (unsigned index : expected) ASSERT_EQ(got[at++], index) << b << " " << t;
    }
  }
}

TEST(KernelsTest, Atomics) {
  const std::vector<int> start = {5, 5, 5, 5, 0, -1, 0, 17, -1, 0, 3};
  const int n = 192, sum = n * (n - 1) / 2;
  const auto ints = InAllOrders([&] {
    DeviceBuffer<int> ints(start);
    DeviceBuffer<unsigned long long> longs(std::vector<unsigned long long>(2));  // NOLINT
    DeviceBuffer<float> floats(std::vector<float>(1));
    DeviceBuffer<double> doubles(std::vector<double>(1));
    EXPECT_EQ(RunAtomics(ints.data(), longs.data(), floats.data(), doubles.data()), cudaSuccess);
    EXPECT_EQ(longs.Read()[0], (1ull << 33) * 192);
    EXPECT_EQ(longs.Read()[1], 191ull << 35);
    EXPECT_EQ(floats.Read()[0], static_cast<float>(sum));
    EXPECT_EQ(doubles.Read()[0], 96.0);
    return ints.Read();
  });
  // 192 increments modulo 10, and decrements from 3 that wrap to 9.
  EXPECT_EQ(ints, (std::vector<int>{5 + sum, 5 - sum, 191, -191, 0xfffff, ~0xfffff, 0, 1000, 17, 2,
                                    ((3 - 192) % 10 + 10) % 10}));
}

}  // namespace
}  // namespace lockstep
