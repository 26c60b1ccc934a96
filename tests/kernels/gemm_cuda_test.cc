// Products that cuBLASLt does not take, f32 into bf16, by the plain kernel; and where gelu joins a
// product.
#include "kernels/matmul/gemm_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/kernel_choices.h"
#include "core/tensor.h"
#include "tests/gpu_test.h"
#include "tests/kernels/capability.h"

namespace lockstep::cuda {
namespace {

using test::kGpu;

// Several tiles, none whole; matrices end where the simulated GPU's memory does, whose blocks are
// multiples of 256 bytes.
constexpr int64_t kBatch = 3, kM = 40, kN = 56, kK = 72;

std::vector<float> Random(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> any(-8, 8);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = static_cast<float>(any(random)) / 8;
  return x;
}

double Gelu(double z) {
  return 0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
}
double GeluDerivative(double z) {
  constexpr double kStep = 1e-5;
  return (Gelu(z + kStep) - Gelu(z - kStep)) / (2 * kStep);
}

enum class Out { kPlain, kAccumulated, kBias, kGelu, kGeluDerivative };

class PlainGemm : public test::GpuTest,
                  public testing::WithParamInterface<std::tuple<bool, bool, Out>> {};

TEST_P(PlainGemm, FollowsTheReference) {
  const auto [transpose_a, transpose_b, out] = GetParam();
  const auto a = Random(kBatch * kM * kK, 1), b = Random(kBatch * kK * kN, 2), bias = Random(kN, 3),
             given = Random(kBatch * kM * kN, 4);
  const auto bf16_tensor = [](const std::vector<float>& x) {
    return Tensor::FromVector(x, {std::ssize(x)}, kGpu).To(DType::kBF16);
  };
  const Tensor ta = Tensor::FromVector(a, {std::ssize(a)}, kGpu),
               tb = Tensor::FromVector(b, {std::ssize(b)}, kGpu), tbias = bf16_tensor(bias),
               tgiven = bf16_tensor(given), c = bf16_tensor(given), z = bf16_tensor(given);
  GemmArgs args{.transpose_a = transpose_a, .transpose_b = transpose_b, .m = kM, .n = kN, .k = kK};
  args.batch = kBatch;
  args.a = ta.raw_data();
  args.b = tb.raw_data();
  args.c_dtype = DType::kBF16;
  args.c = c.raw_data();
  args.accumulate = out == Out::kAccumulated;
  if (out == Out::kBias || out == Out::kGelu) args.bias = tbias.raw_data();
  args.gelu = out == Out::kGelu;
  if (out == Out::kGelu) args.pre_activation = z.raw_data();
  if (out == Out::kGeluDerivative) args.gelu_input = tgiven.raw_data();
  Gemm(CurrentStream(kGpu), args);
  const auto got = c.To(DType::kF32).ToVector<float>(),
             before = z.To(DType::kF32).ToVector<float>();
  for (int64_t at = 0; at < kBatch * kM * kN; ++at) {
    const int64_t j = at % kN, i = at / kN % kM, batch = at / (kM * kN);
    double sum = 0;
    for (int64_t l = 0; l < kK; ++l) {
      sum += double{a[batch * kM * kK + (transpose_a ? l * kM + i : i * kK + l)]} *
             b[batch * kK * kN + (transpose_b ? j * kK + l : l * kN + j)];
    }
    if (args.bias != nullptr) sum += bias[j];
    if (args.accumulate) sum += given[at];
    if (args.pre_activation != nullptr) {
      ASSERT_NEAR(before[at], sum, 1e-3 + std::abs(sum) / 256) << at;
    }
    if (args.gelu) sum = Gelu(sum);
    if (args.gelu_input != nullptr) sum *= GeluDerivative(given[at]);
    ASSERT_NEAR(got[at], sum, 1e-3 + std::abs(sum) / 256) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlainGemm,
                         testing::Combine(testing::Bool(), testing::Bool(),
                                          testing::Values(Out::kPlain, Out::kAccumulated,
                                                          Out::kBias, Out::kGelu,
                                                          Out::kGeluDerivative)));

class GeluOnCapability : public test::SimulatedGpuTest, public testing::WithParamInterface<int> {};

// What does not join is no slow choice where a pass of its own is faster.
TEST_P(GeluOnCapability, JoinsProductsFrom90On) {
  static int64_t n = 0;
  n += 8;  // a product that is new to the process
  const test::Capability capability(GetParam());
  const auto bf16_tensor = [](const Shape& shape, double x) {
    return Tensor::Full(shape, x, DType::kBF16, kGpu);
  };
  const Tensor a = bf16_tensor({16, 8}, 1), b = bf16_tensor({8, n}, 0.0625),
               c = bf16_tensor({16, n}, 7);
  GemmArgs args{.m = 16, .n = n, .k = 8, .dtype = DType::kBF16};
  args.a = a.raw_data();
  args.b = b.raw_data();
  args.c_dtype = DType::kBF16;
  args.c = c.raw_data();
  args.gelu = true;
  const size_t before = KernelChoices().size();
  Gemm(CurrentStream(kGpu), args);
  const std::vector<KernelChoice> choices = KernelChoices();
  ASSERT_EQ(choices.size(), before + 1);
  EXPECT_EQ(choices.back().problem.find("gelu") != std::string::npos, GetParam() >= 90)
      << choices.back().problem;
  EXPECT_EQ(choices.back().why_slow, "");
  for (const float y : c.To(DType::kF32).ToVector<float>()) EXPECT_NEAR(y, Gelu(0.5), 0.002);
}

INSTANTIATE_TEST_SUITE_P(All, GeluOnCapability, testing::Values(80, 89, 90, 120));

}  // namespace
}  // namespace lockstep::cuda
