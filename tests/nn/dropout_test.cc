#include "nn/dropout.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/engine.h"
#include "core/philox.h"
#include "core/step_state.h"
#include "nn/sequential.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::MessageOf;
using testing::HasSubstr;

Tensor Ones() { return Tensor::Full({8, 100}, 1, DType::kF32); }

TEST(DropoutTest, OutsideOfTrainingItReturnsItsInput) {
  Dropout dropout(0.5);
  const Tensor x = Ones();
  EXPECT_EQ(dropout(x).raw_data(), x.raw_data()) << "without names too";
  const StepState state(kCpu, 1);
  TrainingScope training(state);
  Dropout none(0);
  EXPECT_EQ(none(x).raw_data(), x.raw_data());
}

TEST(DropoutTest, KeepsTheShareAskedForAndScales) {
  Dropout dropout(0.25);
  dropout.AssignNames("drop");
  const StepState state(kCpu, 1);
  TrainingScope training(state);
  int kept = 0;
  for (const float v : dropout(Tensor::Full({100, 1000}, 3, DType::kF32)).ToVector<float>()) {
    ASSERT_TRUE(v == 0 || v == 4.0f) << v;
    kept += v != 0;
  }
  EXPECT_NEAR(kept, 75000, 5 * std::sqrt(100000 * 0.25 * 0.75));
}

TEST(DropoutTest, Dropout2dTakesWholeChannels) {
  Dropout2d dropout(0.25);
  dropout.AssignNames("drop");
  Tensor x = Tensor::Full({50, 40, 3, 2}, 3, DType::kF32);
  x.SetRequiresGrad();
  EXPECT_EQ(dropout(x).raw_data(), x.raw_data()) << "outside of training";
  const StepState state(kCpu, 1);
  TrainingScope training(state);
  const Tensor y = dropout(x);
  Backward(y, Tensor::Full(y.shape(), 1, DType::kF32));
  const auto values = y.ToVector<float>(), gradient = x.grad().ToVector<float>();
  int kept = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(values[i] == 0 || values[i] == 4.0f) << values[i];
    ASSERT_EQ(values[i], values[i / 6 * 6]) << "one of a channel differs";
    ASSERT_FLOAT_EQ(gradient[i], values[i] / 3);
    kept += i % 6 == 0 && values[i] != 0;
  }
  EXPECT_NEAR(kept, 1500, 5 * std::sqrt(2000 * 0.25 * 0.75));
  EXPECT_THAT(MessageOf([&] { dropout(Tensor::Zeros({8}, DType::kF32)); }),
              HasSubstr("x must be [N, C, ...], got [8]"));
  EXPECT_THAT(MessageOf([&] { Dropout2d(1); }), HasSubstr("[0, 1), got 1"));
}

TEST(DropoutTest, TheMaskBelongsToThePlaceInTheModel) {
  Sequential a({std::make_shared<Dropout>(0.5)});
  Sequential b({std::make_shared<Dropout>(0), std::make_shared<Dropout>(0.5)});
  a.AssignNames("h");
  b.AssignNames("h");
  StepState state(kCpu, 1), other_seed(kCpu, 2);
  std::vector<float> mask;
  {
    TrainingScope training(state);
    mask = a(Ones()).ToVector<float>();
    const auto second = a(Ones()).ToVector<float>();
    EXPECT_NE(second, mask) << "a second forward, as of a siamese network";
    EXPECT_NE(b(Ones()).ToVector<float>(), mask);
    b.AssignNames("g");
    a.AssignNames("g");
    EXPECT_NE(a(Ones()).ToVector<float>(), mask) << "another path";
    a.AssignNames("h");
    state.SetFirstSample(0);
    EXPECT_EQ(a(Ones()).ToVector<float>(), mask) << "the same micro-batch again";
    EXPECT_EQ(a(Ones()).ToVector<float>(), second);
  }
  EXPECT_EQ(RandomSite("h.0"), HashName("h.0"));
  TrainingScope training(other_seed);
  EXPECT_NE(a(Ones()).ToVector<float>(), mask);
}

TEST(DropoutTest, WithoutNamesTrainingIsAnError) {
  Sequential model({std::make_shared<Dropout>(0.5)});
  const StepState state(kCpu, 1);
  TrainingScope training(state);
  EXPECT_THAT(MessageOf([&] { model(Ones()); }), HasSubstr("call Materialize"));
}

TEST(DropoutTest, BackwardUsesTheMaskOfForward) {
  Dropout dropout(0.5);
  dropout.AssignNames("drop");
  StepState state(kCpu, 1);
  TrainingScope training(state);
  Tensor x = test::RandomTensor({4, 5}, 3);
  x.SetRequiresGrad();
  const Tensor y = dropout(x);
  state.SetFirstSample(2);  // the state may move on before backward
  Backward(y, Tensor::Full({4, 5}, 1, DType::kF64));
  const auto grad = x.grad().ToVector<double>(), in = x.ToVector<double>(),
             out = y.ToVector<double>();
  for (size_t i = 0; i < grad.size(); ++i) {
    EXPECT_EQ(grad[i], out[i] == 0 ? 0.0 : 2.0);
    EXPECT_EQ(out[i], grad[i] * in[i]);
  }
}

TEST(DropoutTest, ProbabilitiesAreChecked) {
  EXPECT_THAT(MessageOf([] { Dropout(1.0); }), HasSubstr("[0, 1), got 1"));
  EXPECT_THAT(MessageOf([] { Dropout(-0.1); }), HasSubstr("got -0.1"));
  EXPECT_THAT(MessageOf([] { Dropout(std::nan("")); }), HasSubstr("[0, 1)"));
}

}  // namespace
}  // namespace lockstep::nn
