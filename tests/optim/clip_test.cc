#include "optim/clip.h"

#include <cmath>
#include <limits>

#include "core/thread_pool.h"
#include "kernels/global_norm/global_norm.h"
#include "optim/sgd.h"
#include "tests/optim/optim_test_util.h"

namespace lockstep::optim {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

StepValues Clip(const std::vector<Tensor>& grads, double max_norm, double loss_scale = 1) {
  std::vector<std::shared_ptr<Parameter>> parameters;
  for (const Tensor& grad : grads) {
    parameters.push_back(MakeParameter(StrCat("p", parameters.size()),
                                       Tensor::Zeros(grad.shape(), grad.dtype()), true));
  }
  StepState state(kCpu, 1);
  Sgd sgd(parameters);
  if (loss_scale != 1) state.EnableLossScaling({.init = loss_scale});
  const auto training = sgd.BeginStep(state, 0, 0.1);
  for (size_t i = 0; i < grads.size(); ++i) parameters[i]->leaf().SetGrad(grads[i]);
  ClipGradNorm(parameters, max_norm, state);
  for (size_t i = 0; i < grads.size(); ++i) {
    EXPECT_EQ(Bits(parameters[i]->grad()), Bits(grads[i])) << "a gradient was changed";
  }
  return state.Read();
}

Tensor F32(const std::vector<float>& values) {
  return Tensor::FromVector(values, {static_cast<int64_t>(values.size())});
}

TEST(ClipTest, NormOfAllTogether) {
  const StepValues v = Clip({F32({3, 0}), F32({0, 0, -4})}, 1);
  EXPECT_EQ(v.grad_norm, 5);
  EXPECT_EQ(v.clip_factor, static_cast<float>(1 / (5 + 1e-6)));
  EXPECT_EQ(v.found_inf, 0);
}

TEST(ClipTest, SmallGradientsStay) {
  EXPECT_EQ(Clip({F32({3, -4})}, 5.1).clip_factor, 1);
  // torch's clip_grad_norm_ divides by norm + 1e-6, so at the limit it still scales by a trace.
  EXPECT_EQ(Clip({F32({3, -4})}, 5).clip_factor, static_cast<float>(5 / (5 + 1e-6)));
}

TEST(ClipTest, ZeroMeasuresOnly) {
  const StepValues v = Clip({F32({300, -400})}, 0);
  EXPECT_EQ(v.grad_norm, 500);
  EXPECT_EQ(v.clip_factor, 1);
}

TEST(ClipTest, ZeroGradient) {
  const StepValues v = Clip({F32({0, 0})}, 1);
  EXPECT_EQ(v.grad_norm, 0);
  EXPECT_EQ(v.clip_factor, 1);
  EXPECT_EQ(v.found_inf, 0);
}

TEST(ClipTest, LossScaleIsTakenOut) {
  const StepValues v = Clip({F32({3 * 1024, 4 * 1024})}, 1, 1024);
  EXPECT_EQ(v.grad_norm, 5);
  EXPECT_EQ(v.clip_factor, static_cast<float>(1 / (5 + 1e-6)));
}

TEST(ClipTest, FindsNanAndInfinityAnywhere) {
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t at : {0, 17, 16384, 40000, 49999}) {
      std::vector<float> values(50000, 0.5f);
      values[at] = bad;
      const StepValues v = Clip({F32({1, 2}), F32(values)}, 1);
      EXPECT_NE(v.found_inf, 0) << bad << " at " << at;
      EXPECT_EQ(v.clip_factor, 1);
    }
  }
}

TEST(ClipTest, SquaresBeyondF32AreFine) {
  const StepValues large = Clip({F32({3e30f, 4e30f})}, 1);
  EXPECT_EQ(large.found_inf, 0);
  EXPECT_FLOAT_EQ(large.grad_norm, 5e30f);
  const StepValues small = Clip({F32({3e-30f, 4e-30f})}, 1);
  EXPECT_FLOAT_EQ(small.grad_norm, 5e-30f);
}

TEST(ClipTest, MixedDTypes) {
  const Tensor f64 = Tensor::FromVector<double>({2, 4}, {2});
  EXPECT_EQ(Clip({F32({1, 2}), f64, F32({0, -12}).To(DType::kBF16)}, 1).grad_norm, 13);
}

// Sums of 16384 elements in f64: the f32 norm is the one nearest to the exact norm.
TEST(ClipTest, IsExactToF32) {
  const std::vector<Tensor> grads = {Noise({101, 997}, 1), Noise({31}, 2), Noise({257, 300}, 3)};
  long double squares = 0;
  for (const Tensor& grad : grads) {
    for (const float x : grad.ToVector<float>()) squares += static_cast<long double>(x) * x;
  }
  EXPECT_EQ(Clip(grads, 1).grad_norm, static_cast<float>(std::sqrt(squares)));
}

TEST(ClipTest, BitsDependOnNeitherThreadsNorAlignment) {
  const int threads = NumThreads();
  const Tensor aligned = Noise({100'003}, 1);
  const Tensor shifted = Tensor::Empty({100'010}, DType::kF32).Slice(0, 3, 100'006);
  shifted.CopyFrom(aligned);
  const StepState state(kCpu, 1);
  std::vector<std::vector<uint8_t>> bits;
  for (const int n : {1, 2, 3, 5}) {
    SetNumThreads(n);
    for (const Tensor& grad : {aligned, shifted}) {
      ops::GradNorm(std::span(&grad, 1), 1, state);
      bits.push_back(Bits(state.tensor()));
    }
  }
  SetNumThreads(threads);
  for (const auto& b : bits) EXPECT_EQ(b, bits[0]);
}

TEST(ClipTest, ParametersWithoutAGradientDoNotCount) {
  auto with = MakeParameter("with", F32({1, 1}), true);
  auto without = MakeParameter("without", F32({1, 1}), true);
  StepState state(kCpu, 1);
  Sgd sgd({with, without});
  const auto training = sgd.BeginStep(state, 0, 0.1);
  with->leaf().SetGrad(F32({3, 4}));
  ClipGradNorm(std::vector{with, without}, 0, state);
  EXPECT_EQ(state.Read().grad_norm, 5);
  with->leaf().ZeroGrad();
  ExpectError<ArgumentError>(
      [&] {
        ClipGradNorm(std::vector{with, without}, 0, state);
      },
      "none of the 2 parameters has a gradient: run Backward");
}

TEST(ClipTest, Errors) {
  ExpectError<ArgumentError>([] { Clip({F32({1})}, -0.5); }, "max_norm must be at least 0");
  ExpectError<ArgumentError>([] { Clip({F32({1})}, std::nan("")); }, "max_norm must be at least 0");
}

}  // namespace
}  // namespace lockstep::optim
