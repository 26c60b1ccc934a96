// The layers that are one op each, and Sequential.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/autograd/engine.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"
#include "nn/precision.h"
#include "nn/sequential.h"
#include "tests/message_of.h"
#include "tests/nn/reference.h"

namespace lockstep::nn {
namespace {

using test::Describe;
using test::Difference;
using test::MessageOf;
using test::ParameterOf;
using test::RandomTensor;
using test::ToMatrix;
using testing::ElementsAre;
using testing::HasSubstr;

// ---- Linear ----

TEST(LinearTest, Parameters) {
  EXPECT_THAT(Describe(Linear(3, 5)), ElementsAre("weight [5, 3] decays", "bias [5]"));
  EXPECT_THAT(Describe(Linear(3, 5, {.bias = false})), ElementsAre("weight [5, 3] decays"));
  Linear linear(3, 5);
  EXPECT_EQ(linear.in_features(), 3);
  EXPECT_EQ(linear.out_features(), 5);
  EXPECT_EQ(Linear(3, 5, {.bias = false}).bias(), nullptr);
}

TEST(LinearTest, IsInitialisedAsTorchDoes) {
  Linear linear(400, 300);
  linear.Materialize(kCpu, 1);
  for (const auto& p : linear.Parameters()) {
    const std::vector<float> values = p->value().ToVector<float>();
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    EXPECT_GE(*low, -0.05f);
    EXPECT_LE(*high, 0.05f);
    EXPECT_LT(*low, -0.049f);
    EXPECT_GT(*high, 0.049f);
  }
  Linear own(4, 3, {.weight_init = Constant(2), .bias_init = Constant(-1)});
  own.Materialize(kCpu, 1);
  EXPECT_THAT(own.weight()->value().ToVector<float>(), testing::Each(2));
  EXPECT_THAT(own.bias()->value().ToVector<float>(), testing::Each(-1));
}

TEST(LinearTest, ForwardAndGradients) {
  for (const bool bias : {true, false}) {
    for (const Activation activation : {Activation::kNone, Activation::kGelu}) {
      Linear linear(5, 7, {.bias = bias, .activation = activation});
      linear.Materialize(kCpu, 1, DType::kF64);
      Tensor x = RandomTensor({2, 3, 5}, 4);
      test::Matrix want =
          test::LinearReference(ToMatrix(x), ParameterOf(linear, "weight"),
                                bias ? ParameterOf(linear, "bias") : test::Matrix());
      if (activation == Activation::kGelu) want = test::GeluReference(want);
      const Tensor y = linear(x);
      EXPECT_EQ(y.shape(), Shape({2, 3, 7}));
      EXPECT_LT(Difference(ToMatrix(y), want), 1e-13);
      x.SetRequiresGrad();
      auto tensors = test::ParametersToCheck(linear);
      tensors.emplace_back("x", x);
      test::CheckGradients(tensors, [&] { return test::Project(linear(x)); });
    }
  }
}

TEST(LinearTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(MessageOf([] { Linear(0, 3); }), HasSubstr("got 0 inputs and 3 outputs"));
  EXPECT_THAT(MessageOf([] { Linear(3, -1); }), HasSubstr("-1 outputs"));
  Linear linear(3, 2);
  linear.Materialize(kCpu, 1);
  EXPECT_THROW(linear(Tensor::Zeros({2, 4}, DType::kF32)), ArgumentError);
}

// ---- Embedding ----

TEST(EmbeddingTest, RowsByIdAndTheirGradient) {
  Embedding embedding(6, 4);
  EXPECT_THAT(Describe(embedding), ElementsAre("weight [6, 4] decays"));
  embedding.Materialize(kCpu, 1, DType::kF64);
  const std::vector<int32_t> ids = {5, 0, 5, 2};
  const Tensor y = embedding(Tensor::FromVector(ids, {2, 2}));
  EXPECT_EQ(y.shape(), Shape({2, 2, 4}));
  const test::Matrix rows = ToMatrix(y), table = ParameterOf(embedding, "weight");
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(rows(i, c), table(ids[i], c));
  }
  test::CheckGradients(test::ParametersToCheck(embedding), [&] {
    return test::Project(embedding(Tensor::FromVector(ids, {2, 2})));
  });
  EXPECT_THROW(embedding(Tensor::FromVector<int32_t>({6}, {1})), ArgumentError);
}

TEST(EmbeddingTest, InitialisedNormallyUnlessToldOtherwise) {
  Embedding embedding(1000, 100);
  embedding.Materialize(kCpu, 1);
  double squares = 0;
  for (const double v : embedding.weight()->value().ToVector<float>()) squares += v * v;
  EXPECT_NEAR(squares / 100000, 1, 5 * std::sqrt(2.0 / 100000));
  Embedding own(2, 2, Constant(3));
  own.Materialize(kCpu, 1);
  EXPECT_THAT(own.weight()->value().ToVector<float>(), testing::Each(3));
  EXPECT_THAT(MessageOf([] { Embedding(0, 3); }), HasSubstr("got 0 vectors of 3"));
}

// ---- LayerNorm ----

TEST(LayerNormTest, ForwardAndGradients) {
  for (const bool bias : {true, false}) {
    LayerNorm norm(6, bias, 1e-3);
    std::vector<std::string> want = {"weight [6]"};
    if (bias) want.push_back("bias [6]");
    EXPECT_EQ(Describe(norm), want);
    norm.Materialize(kCpu, 1, DType::kF64);
    EXPECT_THAT(norm.weight()->value().ToVector<double>(), testing::Each(1));
    if (bias) {
      EXPECT_THAT(norm.bias()->value().ToVector<double>(), testing::Each(0));
    }
    test::Randomize(norm, 5);
    Tensor x = RandomTensor({3, 6}, 4, DType::kF64, -2, 3);
    EXPECT_LT(
        Difference(ToMatrix(norm(x)), test::LayerNormReference(
                                          ToMatrix(x), ParameterOf(norm, "weight"),
                                          bias ? ParameterOf(norm, "bias") : test::Matrix(), 1e-3)),
        1e-13);
    x.SetRequiresGrad();
    auto tensors = test::ParametersToCheck(norm);
    tensors.emplace_back("x", x);
    test::CheckGradients(tensors, [&] { return test::Project(norm(x)); });
  }
  EXPECT_THAT(MessageOf([] { LayerNorm(0); }), HasSubstr("got 0"));
  EXPECT_THAT(MessageOf([] { LayerNorm(3, true, 0); }), HasSubstr("eps > 0"));
}

// ---- Sequential ----

TEST(SequentialTest, NamesChildrenByTheirNumber) {
  Sequential mlp({std::make_shared<Linear>(3, 4), std::make_shared<LayerNorm>(4)});
  mlp.Add(std::make_shared<Linear>(4, 2, LinearOptions{.bias = false}));
  EXPECT_EQ(mlp.size(), 3);
  EXPECT_THAT(Describe(mlp), ElementsAre("0.weight [4, 3] decays", "0.bias [4]", "1.weight [4]",
                                         "1.bias [4]", "2.weight [2, 4] decays"));
  mlp.Materialize(kCpu, 1, DType::kF64);
  const Tensor x = RandomTensor({5, 3}, 1);
  const auto hidden = test::LayerNormReference(
      test::LinearReference(ToMatrix(x), ParameterOf(mlp, "0.weight"), ParameterOf(mlp, "0.bias")),
      ParameterOf(mlp, "1.weight"), ParameterOf(mlp, "1.bias"), 1e-5);
  EXPECT_LT(
      Difference(ToMatrix(mlp(x)), test::LinearReference(hidden, ParameterOf(mlp, "2.weight"), {})),
      1e-13);
  test::CheckGradients(test::ParametersToCheck(mlp), [&] { return test::Project(mlp(x)); });
}

TEST(SequentialTest, EmptyIsTheIdentityAndNullIsRefused) {
  Sequential none;
  const Tensor x = RandomTensor({2}, 1);
  EXPECT_EQ(none(x).raw_data(), x.raw_data());
  EXPECT_THAT(MessageOf([] { Sequential({nullptr}); }), HasSubstr("'0' must be a module"));
}

TEST(SequentialTest, ParametersDoNotDependOnTheirNeighbours) {
  Sequential small({std::make_shared<Linear>(3, 4)});
  Sequential large({std::make_shared<Linear>(3, 4), std::make_shared<Linear>(4, 9)});
  small.Materialize(kCpu, 7);
  large.Materialize(kCpu, 7);
  EXPECT_EQ(ParameterOf(small, "0.weight").data, ParameterOf(large, "0.weight").data);
  // Equal shapes, other names.
  Sequential twins({std::make_shared<Linear>(3, 3), std::make_shared<Linear>(3, 3)});
  twins.Materialize(kCpu, 7);
  EXPECT_NE(ParameterOf(twins, "0.weight").data, ParameterOf(twins, "1.weight").data);
}

// ---- Precision ----

TEST(PrecisionTest, APartHasItsOwnDTypesAndTheSameNames) {
  Sequential model({std::make_shared<InPrecision>(std::make_shared<LayerNorm>(6), Precision{}),
                    std::make_shared<Linear>(6, 4)});
  Materialize(model, kCpu, 7, {.compute = DType::kBF16});
  const auto parameters = model.NamedParameters();
  EXPECT_EQ(parameters[0].first, "0.weight");
  EXPECT_EQ(parameters[2].first, "1.weight");
  EXPECT_EQ(parameters[0].second->value().dtype(), DType::kF32);
  EXPECT_EQ(parameters[2].second->value().dtype(), DType::kBF16);
  Tensor x = RandomTensor({3, 6}, 5).To(DType::kBF16);
  x.SetRequiresGrad();
  const Tensor y = model(x);
  EXPECT_EQ(y.dtype(), DType::kBF16);
  Backward(y, Tensor::Full(y.shape(), 1, y.dtype()));
  EXPECT_EQ(x.grad().dtype(), DType::kBF16);
  for (const auto& [name, p] : parameters) EXPECT_EQ(p->grad().dtype(), DType::kF32) << name;
}

TEST(PrecisionTest, APartComputesInItsDTypeAndRoundsItsResult) {
  InPrecision part(std::make_shared<LayerNorm>(6), Precision{});
  Materialize(part, kCpu, 7, {.compute = DType::kBF16});
  LayerNorm wide(6);
  wide.Materialize(kCpu, 7);
  const Tensor x = RandomTensor({3, 6}, 5).To(DType::kBF16);
  const Tensor want = wide(x.To(DType::kF32)).To(DType::kBF16);
  EXPECT_EQ(part(x).ToVector<BF16>(), want.ToVector<BF16>());
  InPrecision f32_result(std::make_shared<LayerNorm>(6), Precision{.output = DType::kF32});
  Materialize(f32_result, kCpu, 7, {.compute = DType::kBF16});
  EXPECT_EQ(f32_result(x).ToVector<float>(), wide(x.To(DType::kF32)).ToVector<float>());
}

}  // namespace
}  // namespace lockstep::nn
