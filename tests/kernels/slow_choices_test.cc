// Kernels of Lockstep that are slower than they could be say so, once per problem.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/autograd/engine.h"
#include "core/kernel_choices.h"
#include "kernels/conv2d/conv2d.h"
#include "kernels/grouped_linear/grouped_linear.h"
#include "kernels/reduce/reduce.h"
#include "tests/gpu_test.h"

namespace lockstep {
namespace {

class SlowChoices : public test::GpuTest {
 protected:
  // How many more slow choices of these ops there are after `run`.
  template <class Run>
  static int64_t MadeBy(const std::string& ops, const Run& run) {
    const int64_t before = Count(ops);
    run();
    return Count(ops) - before;
  }

  static Tensor Leaf(const Shape& shape, DType dtype, DType gradient) {
    Tensor x = Tensor::Full(shape, 0.5, dtype, test::kGpu);
    x.SetRequiresGrad();
    x.autograd()->leaf->SetDType(gradient);
    return x;
  }
  static void RunBackward(const Tensor& y) {
    Backward(y, Tensor::Full(y.shape(), 1, y.dtype(), test::kGpu));
  }

 private:
  static int64_t Count(const std::string& ops) {
    const std::vector<KernelChoice> choices = KernelChoices();
    return std::count_if(choices.begin(), choices.end(), [&](const KernelChoice& c) {
      return c.op.starts_with(ops) && !c.why_slow.empty();
    });
  }
};

TEST_F(SlowChoices, OfExperts) {
  const auto run = [](int64_t n, int64_t k, DType dtype, DType gradient) {
    const Tensor x = Leaf({6, k}, dtype, dtype), weight = Leaf({2, n, k}, dtype, gradient);
    RunBackward(
        ops::GroupedLinear(x, weight, Tensor::FromVector<int32_t>({0, 2, 6}, {3}, test::kGpu)));
  };
  const auto made = [&](int64_t n, int64_t k, DType dtype, DType gradient) {
    return MadeBy("grouped_linear", [&] { run(n, k, dtype, gradient); });
  };
  EXPECT_EQ(made(16, 24, DType::kBF16, DType::kBF16), 0);
  EXPECT_EQ(made(16, 24, DType::kBF16, DType::kF32), 0);
  EXPECT_EQ(made(15, 23, DType::kF32, DType::kF32), 0);  // as fast as f32 is
  // Forward, and both gradients.
  EXPECT_EQ(made(15, 23, DType::kBF16, DType::kBF16), 3);
  EXPECT_EQ(made(15, 23, DType::kBF16, DType::kBF16), 0);
  EXPECT_EQ(made(16, 24, DType::kBF16, DType::kF16), 1);
  EXPECT_EQ(made(16, 24, DType::kBF16, DType::kF16), 0);
}

TEST_F(SlowChoices, OfConvolutions) {
  const Tensor small = Leaf({1, 1, 5, 5}, DType::kF32, DType::kF32),
               large = Leaf({16, 1, 50, 50}, DType::kF32, DType::kF32);
  const Tensor weight = Leaf({4, 1, 3, 3}, DType::kF32, DType::kF32), frozen = weight.Detach();
  const auto made = [&](const Tensor& x, const Tensor& w) {
    return MadeBy("conv2d", [&] { RunBackward(ops::Conv2d(x, w, Tensor(), {})); });
  };
  EXPECT_EQ(made(small, weight), 0);  // takes no time
  EXPECT_EQ(made(large, frozen), 0);
  EXPECT_EQ(made(large, weight), 1);
  EXPECT_EQ(made(large, weight), 0);
}

TEST_F(SlowChoices, OfSumsThatLeaveLanesIdle) {
  const auto made = [](const Shape& shape) {
    return MadeBy("reduce_sum",
                  [&] { ops::Sum(Tensor::Full(shape, 1, DType::kF32, test::kGpu), {1}); });
  };
  EXPECT_EQ(made({32, 8, 2}), 0);      // takes no time
  EXPECT_EQ(made({1024, 32, 32}), 0);  // all have a column
  EXPECT_EQ(made({1024, 1024}), 0);    // along rows
  EXPECT_EQ(made({65536, 8, 2}), 1);
  EXPECT_EQ(made({65536, 8, 2}), 0);
}

}  // namespace
}  // namespace lockstep
