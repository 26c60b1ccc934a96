#include "kernels/scale/scale.h"

#include <gtest/gtest.h>

#include <random>

#include "core/autograd/engine.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

// The bits of the division itself, which a product with the inverse misses one time in four.
template <class T>
void ExpectQuotients(Device device) {
  std::mt19937 random(3);
  std::normal_distribution<T> normal;
  std::vector<T> values(10'000);
  for (T& v : values) v = normal(random);
  for (const double divisor : {3.0, 49.0, 0.1, -7e-3}) {
    const auto s = static_cast<T>(divisor);
    std::vector<T> want;
    for (T v : values) want.push_back(v / s);
    Tensor x = Tensor::FromVector(values, {std::ssize(values)}, device);
    x.SetRequiresGrad();
    const Tensor y = x / divisor;
    EXPECT_EQ(y.template ToVector<T>(), want) << divisor;
    // So does its gradient, the second time added to the first.
    const Tensor dy = Tensor::FromVector(values, {std::ssize(values)}, device);
    Backward(y, dy, {.retain_graph = true});
    EXPECT_EQ(x.grad().template ToVector<T>(), want) << divisor;
    Backward(y, dy);
    for (T& v : want) v += v;
    EXPECT_EQ(x.grad().template ToVector<T>(), want) << divisor;
  }
}

TEST(ScaleTest, DividesOnTheCpu) {
  ExpectQuotients<float>(kCpu);
  ExpectQuotients<double>(kCpu);
}

class ScaleCudaTest : public test::GpuTest {};
TEST_F(ScaleCudaTest, DividesOnTheGpu) { ExpectQuotients<float>(test::kGpu); }

}  // namespace
}  // namespace lockstep
