// Conversions against PTX's definition of cvt.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <limits>

namespace lockstep {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kNanDouble = std::numeric_limits<double>::quiet_NaN();

TEST(MathTest, NanBecomesZeroOnlyWithinThirtyTwoBits) {
  EXPECT_EQ(__float2int_rn(kNan), 0);
  EXPECT_EQ(__float2uint_rz(kNan), 0u);
  constexpr int kLeast = std::numeric_limits<int>::min();
  EXPECT_EQ(__double2int_rn(kNanDouble), kLeast);
  EXPECT_EQ(__double2int_rz(kNanDouble), kLeast);
  constexpr long long kLeastLong = std::numeric_limits<long long>::min();  // NOLINT
  EXPECT_EQ(__float2ll_rn(kNan), kLeastLong);
  EXPECT_EQ(__double2ll_rn(kNanDouble), kLeastLong);
}

TEST(MathTest, ValuesOutOfRangeBecomeTheNearest) {
  EXPECT_EQ(__float2int_rn(3e9f), std::numeric_limits<int>::max());
  EXPECT_EQ(__float2int_rn(-3e9f), std::numeric_limits<int>::min());
  EXPECT_EQ(__float2uint_rn(-1.0f), 0u);
  EXPECT_EQ(__double2ll_rn(1e30), std::numeric_limits<long long>::max());  // NOLINT
}

}  // namespace
}  // namespace lockstep
