#include "nn/init.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "core/philox.h"

namespace lockstep::nn {
namespace {

using testing::HasSubstr;

std::vector<float> Fill(const Initializer& init, int64_t n, uint64_t seed = 1337,
                        const std::string& name = "h.0.attn.c_attn.weight", int64_t first = 0) {
  std::vector<float> out(static_cast<size_t>(n), NAN);
  init(out, first, seed, name);
  return out;
}

const std::vector<std::pair<std::string, Initializer>>& RandomOnes() {
  static const std::vector<std::pair<std::string, Initializer>> all = {
      {"Normal", Normal(0.5, 2)},
      {"Uniform", Uniform(-1, 3)},
      {"KaimingUniform", KaimingUniform(7)}};
  return all;
}

struct Moments {
  double mean = 0, std = 0, skewness = 0, kurtosis = 0;
};

Moments MomentsOf(const std::vector<float>& values) {
  Moments m;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) m.mean += v / n;
  double second = 0, third = 0, fourth = 0;
  for (const double v : values) {
    const double d = v - m.mean;
    second += d * d / n;
    third += d * d * d / n;
    fourth += d * d * d * d / n;
  }
  m.std = std::sqrt(second);
  m.skewness = third / std::pow(second, 1.5);
  m.kurtosis = fourth / (second * second);
  return m;
}

constexpr int64_t kMany = 1 << 20;

TEST(InitTest, NormalHasItsMoments) {
  const Moments m = MomentsOf(Fill(Normal(0.5, 2), kMany));
  // Five standard errors each.
  EXPECT_NEAR(m.mean, 0.5, 5 * 2 / 1024.0);
  EXPECT_NEAR(m.std, 2, 5 * 2 / (1024.0 * std::sqrt(2)));
  EXPECT_NEAR(m.skewness, 0, 5 * std::sqrt(6.0) / 1024);
  EXPECT_NEAR(m.kurtosis, 3, 5 * std::sqrt(24.0) / 1024);
}

TEST(InitTest, NormalIsNormal) {
  // The greatest distance of the empirical from the normal distribution function (Kolmogorov and
  // Smirnov); above 1.95 / sqrt(n) with a probability of 1e-3.
  std::vector<float> values = Fill(Normal(0, 1), kMany);
  std::sort(values.begin(), values.end());
  double distance = 0;
  for (int64_t i = 0; i < kMany; ++i) {
    const double want = 0.5 * std::erfc(-static_cast<double>(values[i]) / std::sqrt(2));
    distance = std::max(distance, std::abs(want - (i + 0.5) / kMany));
  }
  EXPECT_LT(distance, 1.95 / 1024);
  EXPECT_LT(values.front(), -4.2);
  EXPECT_GT(values.back(), 4.2);
  EXPECT_LT(values.back(), 6.8);
}

TEST(InitTest, NormalIsBoxMullerOnPhilox) {
  const uint64_t seed = 77;
  const std::string name = "wte.weight";
  const std::vector<float> got = Fill(Normal(0, 0.02), 1000, seed, name);
  for (uint64_t pair = 0; pair < 500; ++pair) {
    const auto word = [&](uint64_t i) {
      return (static_cast<long double>(Philox(seed).At(HashName(name), 2 * pair + i)) + 0.5L) /
             4294967296.0L;
    };
    const long double radius = std::sqrt(-2 * std::log(word(0)));
    const long double angle = 2 * std::numbers::pi_v<long double> * word(1);
    ASSERT_FLOAT_EQ(got[2 * pair], static_cast<float>(0.02L * radius * std::cos(angle)));
    ASSERT_FLOAT_EQ(got[2 * pair + 1], static_cast<float>(0.02L * radius * std::sin(angle)));
  }
}

TEST(InitTest, UniformHasItsMomentsAndBounds) {
  const std::vector<float> values = Fill(Uniform(-1, 3), kMany);
  const Moments m = MomentsOf(values);
  EXPECT_NEAR(m.mean, 1, 5 * (4 / std::sqrt(12)) / 1024);
  EXPECT_NEAR(m.std, 4 / std::sqrt(12), 5 * 4 / std::sqrt(12) / 1024);
  EXPECT_NEAR(m.kurtosis, 1.8, 0.01);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*low, -1);
  EXPECT_LT(*low, -0.9999);
  EXPECT_LE(*high, 3);
  EXPECT_GT(*high, 2.9999);
}

TEST(InitTest, KaimingUniformHasTheBoundOfTorchsLinear) {
  const std::vector<float> values = Fill(KaimingUniform(16), kMany);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  EXPECT_GE(*low, -0.25f);
  EXPECT_LE(*high, 0.25f);
  EXPECT_NEAR(MomentsOf(values).std, 0.25 / std::sqrt(3), 1e-3);
}

TEST(InitTest, NeighboursAreNotCorrelated) {
  for (const auto& [name, init] : RandomOnes()) {
    const std::vector<float> values = Fill(init, kMany);
    const Moments m = MomentsOf(values);
    for (int64_t lag = 1; lag <= 8; ++lag) {
      double sum = 0, squares = 0;
      for (int64_t i = 0; i + lag < kMany; ++i) {
        const double a = (values[i] - m.mean) / m.std, b = (values[i + lag] - m.mean) / m.std;
        sum += a * b;
        squares += a * a * b * b;
      }
      EXPECT_LT(std::abs(sum / kMany), 5.0 / 1024) << name << ", lag " << lag;
      // Products of squares would show a common radius of a pair.
      EXPECT_NEAR(squares / kMany, 1, 20.0 / 1024) << name << ", lag " << lag;
    }
  }
}

TEST(InitTest, ElementsDependOnlyOnSeedNameAndIndex) {
  for (const auto& [what, init] : RandomOnes()) {
    const std::vector<float> whole = Fill(init, 1000);
    EXPECT_EQ(Fill(init, 1000), whole) << what;
    for (const auto& [first, n] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 1}, {1, 1}, {1, 2}, {2, 7}, {3, 100}, {501, 499}, {999, 1}}) {
      const std::vector<float> part = Fill(init, n, 1337, "h.0.attn.c_attn.weight", first);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(part[i], whole[first + i]) << what;
    }
    // Another seed, name or place: nothing in common.
    for (const std::vector<float>& other :
         {Fill(init, 1000, 1338), Fill(init, 1000, 1337 + (uint64_t{1} << 32)),
          Fill(init, 1000, 1337, "h.1.attn.c_attn.weight"),
          Fill(init, 1000, 1337, "h.0.attn.c_attn.weight", 1000)}) {
      int equal = 0;
      for (int i = 0; i < 1000; ++i) equal += other[i] == whole[i];
      EXPECT_LT(equal, 3) << what;
    }
  }
}

// The same seed gives the same model in every version of Lockstep: these bits never change.
TEST(InitTest, FrozenBits) {
  const auto bits = [](const Initializer& init, int64_t first) {
    std::vector<uint32_t> out;
    for (const float f : Fill(init, 4, 1337, "wte.weight", first)) {
      out.push_back(std::bit_cast<uint32_t>(f));
    }
    return out;
  };
  EXPECT_THAT(bits(Normal(0, 0.02), 0),
              testing::ElementsAre(0x3c675be9, 0xbced1ab4, 0xbd6db26e, 0xbb3bda53));
  EXPECT_THAT(bits(Normal(0, 0.02), int64_t{1} << 33),
              testing::ElementsAre(0xbc2c9cf8, 0x3a9b2a65, 0xbc5de1ac, 0xbc545328));
  EXPECT_THAT(bits(Uniform(-1, 1), 2),
              testing::ElementsAre(0xbf78791b, 0x3c80b1e5, 0x3e2b4e6a, 0xbe9fa1c8));
}

TEST(InitTest, ConstantsAndDegenerateOnes) {
  EXPECT_THAT(Fill(Constant(0.1), 3), testing::Each(0.1f));
  EXPECT_THAT(Fill(Normal(2, 0), 3), testing::Each(2.0f));
  EXPECT_THAT(Fill(Uniform(2, 2), 3), testing::Each(2.0f));
}

TEST(InitTest, RefusesNonsense) {
  const auto message = [](const std::function<void()>& f) -> std::string {
    try {
      f();
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message([] { Normal(0, -1); }), HasSubstr("std >= 0, got 0 and -1"));
  EXPECT_THAT(message([] { Normal(NAN, 1); }), HasSubstr("finite mean"));
  EXPECT_THAT(message([] { Uniform(1, 0); }), HasSubstr("low <= high, got 1 and 0"));
  EXPECT_THAT(message([] { Uniform(0, INFINITY); }), HasSubstr("finite"));
  EXPECT_THAT(message([] { KaimingUniform(0); }), HasSubstr("positive"));
}

TEST(InitTest, ParametersOfAnyDTypeAreTheRoundedF32Ones) {
  Parameter p({100, 3}, Normal(0, 0.02), true);
  p.set_name("w");
  p.Materialize(kCpu, DType::kF32, 5);
  const Tensor f32 = p.value().Detach();
  p.Materialize(kCpu, DType::kBF16, 5);
  EXPECT_EQ(p.value().Detach().To(DType::kF32).ToVector<float>(),
            f32.To(DType::kBF16).To(DType::kF32).ToVector<float>());
  p.Materialize(kCpu, DType::kF64, 5);
  EXPECT_EQ(p.value().ToVector<double>(), f32.To(DType::kF64).ToVector<double>());
  EXPECT_EQ(f32.ToVector<float>(), Fill(Normal(0, 0.02), 300, 5, "w"));
}

}  // namespace
}  // namespace lockstep::nn
