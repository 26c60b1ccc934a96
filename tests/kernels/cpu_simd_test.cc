#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/cpu/math.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/simd.h"

namespace lockstep::cpu {
namespace {

// Loops of ops: elementwise functions with their remainders, and a sum.
void Loops(const std::vector<float>& x, std::vector<float>& y) {
  const auto n = static_cast<int64_t>(x.size());
  const float* in = x.data();
  float* out = y.data();
  for (int64_t i = 0; i < n; ++i) out[i] = Gelu(in[i]);
  for (int64_t i = 0; i < n; ++i) out[n + i] = GeluDerivative(in[i]);
  for (int64_t i = 0; i < n; ++i) out[2 * n + i] = Silu(in[i]) + GeluExact(in[i]) * Exp(in[i]);
  out[3 * n] = SumOver<float>(n, [=](int64_t i) { return in[i] * out[i]; });
}

TEST(CpuSimdTest, BothInstructionSetsGiveTheSameBits) {
#ifdef __x86_64__
  if (!HasAvx512()) GTEST_SKIP() << "this CPU has no AVX-512";
  for (size_t n : {1u, 15u, 16u, 33u, 1003u}) {
    std::vector<float> x(n), narrow(3 * n + 1), wide(3 * n + 1);
    for (size_t i = 0; i < n; ++i) {
      x[i] = -12.0f + 24.0f * static_cast<float>((i * 2654435761u) % 10007) / 10007.0f;
    }
    Loops(x, narrow);
    RunOnAvx512([&] { Loops(x, wide); });
    EXPECT_EQ(std::memcmp(narrow.data(), wide.data(), narrow.size() * sizeof(float)), 0) << n;
  }
#else
  GTEST_SKIP() << "this CPU has one instruction set";
#endif
}

}  // namespace
}  // namespace lockstep::cpu
