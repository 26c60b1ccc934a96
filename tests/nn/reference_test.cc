// The checks of this folder must be able to fail.
#include "tests/nn/reference.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/saved_tensor.h"

namespace lockstep::test {
namespace {

// y = x^3 with a gradient that is wrong by the given factor.
class CubeNode : public Node {
 public:
  CubeNode(const Tensor& x, double factor) : Node("cube"), x_(Save(x, "x")), factor_(factor) {}
  void Backward(Gradients& grads) override {
    const Tensor x = x_.Unpack();
    const Tensor dx = Tensor::EmptyLike(x);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double v = x.data<double>()[i];
      dx.data<double>()[i] = factor_ * 3 * v * v * grads[0].data<double>()[i];
    }
    grads.Put(0, dx);
  }

 private:
  const SavedTensor& x_;
  double factor_;
};

Tensor Cube(const Tensor& x, double factor) {
  Tensor y = Tensor::EmptyLike(x);
  for (int64_t i = 0; i < x.numel(); ++i) y.data<double>()[i] = std::pow(x.data<double>()[i], 3);
  if (NeedsGrad({&x})) Record(std::make_shared<CubeNode>(x.Detach(), factor), {&x}, {&y});
  return y;
}

void Check(double factor, int directions, int elements) {
  Tensor x = RandomTensor({3, 2}, 1);
  x.SetRequiresGrad();
  CheckGradients(
      {{"x", x}}, [&] { return Project(Cube(x, factor)); }, directions, elements);
}

TEST(CheckGradientsTest, PassesTheRightAndFailsTheSlightlyWrong) {
  Check(1, 3, 5);
  EXPECT_NONFATAL_FAILURE(Check(1 + 1e-6, 1, 0), "x, direction 0");
  EXPECT_NONFATAL_FAILURE(Check(1 + 1e-6, 0, 1), "x, element 0");
  EXPECT_NONFATAL_FAILURE(Check(NAN, 1, 0), "x, direction 0");
}

TEST(DifferenceTest, SeesSizesAndNaN) {
  const Matrix a{1, 2, {1, 2}};
  EXPECT_EQ(Difference(a, a), 0);
  EXPECT_DOUBLE_EQ(Difference({1, 2, {1, 2.75}}, a), 0.25);
  EXPECT_TRUE(std::isinf(Difference({2, 1, {1, 2}}, a)));
  EXPECT_TRUE(std::isinf(Difference({1, 2, {NAN, 2}}, a)));
  EXPECT_TRUE(std::isinf(Difference({1, 2, {1, NAN}}, a)));
  EXPECT_TRUE(std::isinf(Difference(a, {1, 2, {NAN, 2}})));
}

}  // namespace
}  // namespace lockstep::test
