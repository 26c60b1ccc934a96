// Convolution, batch normalisation and pooling as layers.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/step_state.h"
#include "nn/activation.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/sequential.h"
#include "nn/vision/batch_norm.h"
#include "nn/vision/conv2d.h"
#include "nn/vision/pooling.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::Describe;
using test::MessageOf;
using test::RandomTensor;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Conv2dTest, ParametersAreInitialisedAsTorchDoes) {
  EXPECT_THAT(Describe(Conv2d(4, 6, {3, 2}, {.groups = 2})),
              ElementsAre("weight [6, 2, 3, 2] decays", "bias [6]"));
  EXPECT_THAT(Describe(Conv2d(4, 6, 1, {.bias = false})),
              ElementsAre("weight [6, 4, 1, 1] decays"));
  Conv2d conv(50, 400, {4, 8}, {.groups = 2});  // 25 * 4 * 8 inputs: bound 1 / sqrt(800)
  conv.Materialize(kCpu, 1);
  const float bound = 1 / std::sqrt(800.0f);
  for (const auto& p : conv.Parameters()) {
    const std::vector<float> values = p->value().ToVector<float>();
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    EXPECT_GE(*low, -bound);
    EXPECT_LE(*high, bound);
    EXPECT_LT(*low, -0.97f * bound);
    EXPECT_GT(*high, 0.97f * bound);
  }
}

TEST(Conv2dTest, HandsItsOptionsOn) {
  Conv2d conv(4, 6, {3, 2}, {.stride = {2, 1}, .padding = {0, 1}, .dilation = {1, 2}, .groups = 2});
  conv.Materialize(kCpu, 1, DType::kF64);
  Tensor x = RandomTensor({2, 4, 7, 5}, 1);
  const Tensor want =
      ops::Conv2d(x, conv.weight()->value(), conv.bias()->value(),
                  {.stride = {2, 1}, .padding = {0, 1}, .dilation = {1, 2}, .groups = 2});
  EXPECT_EQ(conv(x).ToVector<double>(), want.ToVector<double>());
  x.SetRequiresGrad();
  auto tensors = test::ParametersToCheck(conv);
  tensors.emplace_back("x", x);
  test::CheckGradients(tensors, [&] { return test::Project(conv(x)); });
}

TEST(Conv2dTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(MessageOf([] { Conv2d(0, 3, 3); }), HasSubstr("got 0 input and 3 output channels"));
  EXPECT_THAT(MessageOf([] { Conv2d(2, 3, {3, 0}); }), HasSubstr("a kernel of 3 x 0"));
  EXPECT_THAT(MessageOf([] { Conv2d(4, 6, 3, {.groups = 4}); }),
              HasSubstr("groups must divide the 4 input and 6 output channels, got 4"));
  EXPECT_THAT(MessageOf([] { Conv2d(4, 6, 3, {.stride = 0}); }), HasSubstr("at least 1"));
  EXPECT_THAT(MessageOf([] { Conv2d(4, 6, 3, {.padding = -1}); }), HasSubstr("padding"));
}

TEST(BatchNormTest, ParametersAndBuffers) {
  EXPECT_THAT(Describe(BatchNorm2d(5)),
              ElementsAre("weight [5]", "bias [5]", "running_mean f32[5] buffer",
                          "running_var f32[5] buffer", "num_batches_tracked i64[] buffer"));
  EXPECT_THAT(Describe(BatchNorm1d(5, {.affine = false, .track_running_stats = false})),
              ElementsAre());
}

TEST(BatchNormTest, TrainsOnTheBatchAndEvaluatesByTheRunningStatistics) {
  Sequential model({std::make_shared<BatchNorm1d>(2)});
  model.Materialize(kCpu, 1);
  const auto buffer = [&](size_t i) {
    return model.NamedBuffers()[i].second.To(DType::kF64).ToVector<double>();
  };
  const Tensor x = Tensor::FromVector<float>({0, 10, 2, 14, 4, 18}, {3, 2});
  // Untrained, evaluation uses mean 0 and variance 1.
  EXPECT_THAT(model(x).ToVector<float>(),
              testing::Pointwise(testing::FloatNear(1e-4f), x.ToVector<float>()));
  EXPECT_THAT(buffer(2), ElementsAre(0));
  {
    const StepState state(kCpu, 1);
    const TrainingScope training(state);
    const std::vector<float> y = model(x).ToVector<float>();
    const float r = std::sqrt(1.5f);
    EXPECT_THAT(
        y, testing::Pointwise(testing::FloatNear(1e-5f), std::vector<float>{-r, -r, 0, 0, r, r}));
  }
  // A tenth of means 2 and 14, and of unbiased variances 4 and 16.
  EXPECT_THAT(buffer(0),
              ElementsAre(testing::DoubleNear(0.2, 1e-6), testing::DoubleNear(1.4, 1e-6)));
  EXPECT_THAT(buffer(1),
              ElementsAre(testing::DoubleNear(1.3, 1e-6), testing::DoubleNear(2.5, 1e-6)));
  EXPECT_THAT(buffer(2), ElementsAre(1));
  const float want = (10 - 1.4f) / std::sqrt(2.5f + 1e-5f);
  EXPECT_NEAR(model(x).ToVector<float>()[1], want, 1e-5);
  EXPECT_THAT(buffer(2), ElementsAre(1));
}

TEST(BatchNormTest, WithoutTrackingEvaluationUsesTheBatchToo) {
  BatchNorm2d norm(3, {.track_running_stats = false});
  norm.Materialize(kCpu, 1);
  const Tensor x = RandomTensor({2, 3, 4, 4}, 1, DType::kF32, 5, 9);
  const std::vector<float> y = norm(x).ToVector<float>();
  double sum = 0, squares = 0;
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t i = 0; i < 16; ++i) {
      const double v = y[static_cast<size_t>(n * 48 + i)];
      sum += v;
      squares += v * v;
    }
  }
  EXPECT_NEAR(sum / 32, 0, 1e-5);
  EXPECT_NEAR(squares / 32, 1, 1e-4);
}

TEST(BatchNormTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(MessageOf([] { BatchNorm2d(0); }), HasSubstr("got 0"));
  EXPECT_THAT(MessageOf([] { BatchNorm2d(2, {.eps = 0}); }), HasSubstr("eps > 0"));
  EXPECT_THAT(MessageOf([] { BatchNorm2d(2, {.momentum = 2}); }), HasSubstr("got 2"));
  BatchNorm1d one(3);
  BatchNorm2d two(3);
  one.Materialize(kCpu, 1);
  two.Materialize(kCpu, 1);
  EXPECT_THAT(MessageOf([&] {
                one(RandomTensor({2, 3, 2, 2}, 1, DType::kF32));
              }),
              HasSubstr("BatchNorm1d of 3 channels needs [N, 3] or [N, 3, L]"));
  EXPECT_THAT(MessageOf([&] {
                two(RandomTensor({2, 4, 2, 2}, 1, DType::kF32));
              }),
              HasSubstr("BatchNorm2d of 3 channels needs [N, 3, H, W], got f32[2, 4, 2, 2]"));
}

TEST(PoolingTest, LayersHandTheirOptionsOn) {
  const Tensor x = RandomTensor({2, 3, 7, 6}, 1, DType::kF32);
  const MaxPool2dOptions max = {.kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true};
  const AvgPool2dOptions avg = {.kernel = 3, .stride = 2, .padding = 1, .count_include_pad = false};
  const auto values = [](const Tensor& t) { return t.ToVector<float>(); };
  MaxPool2d max_pool(max), max_halves(2);
  AvgPool2d avg_pool(avg), avg_halves(2);
  AdaptiveAvgPool2d cells({2, 3});
  Flatten flatten;
  EXPECT_EQ(values(max_pool(x)), values(ops::MaxPool2d(x, max)));
  EXPECT_EQ(values(max_halves(x)), values(ops::MaxPool2d(x, {})));
  EXPECT_EQ(values(avg_pool(x)), values(ops::AvgPool2d(x, avg)));
  EXPECT_EQ(values(avg_halves(x)), values(ops::AvgPool2d(x, {})));
  EXPECT_EQ(values(cells(x)), values(ops::AdaptiveAvgPool2d(x, {2, 3})));
  EXPECT_EQ(flatten(x).shape(), Shape({2, 126}));
  EXPECT_EQ(flatten(Tensor::Zeros({0, 3, 2}, DType::kF32)).shape(), Shape({0, 6}));
}

}  // namespace
}  // namespace lockstep::nn
