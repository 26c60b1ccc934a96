#include "models/generate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::models {
namespace {

TEST(DrawToken, FollowsTheDistribution) {
  const std::vector<float> logits = {0.0f, std::log(2.0f), std::log(5.0f)};
  std::vector<int> counts(3);
  constexpr int kDraws = 8000;
  for (int i = 0; i < kDraws; ++i) ++counts[DrawToken(logits, {}, (i + 0.5) / kDraws)];
  EXPECT_NEAR(counts[0], kDraws / 8, 1);
  EXPECT_NEAR(counts[1], kDraws / 4, 1);
  EXPECT_NEAR(counts[2], kDraws * 5 / 8, 1);
}

TEST(DrawToken, TemperatureSharpens) {
  const std::vector<float> logits = {0.0f, std::log(3.0f)};
  int ones = 0;
  for (int i = 0; i < 1000; ++i) ones += DrawToken(logits, {.temperature = 0.5}, (i + 0.5) / 1000);
  EXPECT_EQ(ones, 900);  // 3^2 : 1
}

TEST(DrawToken, TopKAndZeroTemperatureKeepTheLikeliest) {
  const std::vector<float> logits = {1, 4, 3, 2};
  for (double u : {0.0, 0.3, 0.6, 0.999999}) {
    EXPECT_EQ(DrawToken(logits, {.temperature = 0}, u), 1);
    EXPECT_EQ(DrawToken(logits, {.top_k = 1}, u), 1);
    const int32_t two = DrawToken(logits, {.top_k = 2}, u);
    EXPECT_TRUE(two == 1 || two == 2);
  }
}

TEST(DrawToken, RefusesLogitsThatAreNotFinite) {
  EXPECT_THROW(DrawToken(std::vector<float>{NAN, 1}, {}, 0.5), ArgumentError);
  EXPECT_THROW(DrawToken(std::vector<float>{}, {}, 0.5), ArgumentError);
}

class GenerateTest : public testing::Test {
 protected:
  GenerateTest()
      : model_({.vocab_size = 9, .block_size = 5, .n_layer = 1, .n_head = 1, .n_embd = 8}) {
    model_.Materialize(kCpu, 3);
  }
  Gpt model_;
  const std::vector<int32_t> prompt_ = {1, 2};
};

TEST_F(GenerateTest, IsAFunctionOfTheSeedAndGoesBeyondTheContext) {
  const GenerateOptions options{.tokens = 12, .seed = 4};
  const auto a = Generate(model_, prompt_, 9, options);
  EXPECT_EQ(a.size(), 12u);
  EXPECT_EQ(a, Generate(model_, prompt_, 9, options));
  EXPECT_NE(a, Generate(model_, prompt_, 9, {.tokens = 12, .seed = 5}));
}

TEST_F(GenerateTest, NeverDrawsThePaddingOfTheVocabulary) {
  for (int32_t id : Generate(model_, prompt_, 4, {.tokens = 50, .temperature = 10}))
    EXPECT_LT(id, 4);
}

TEST_F(GenerateTest, StopsWhenTold) {
  int calls = 0;
  Generate(model_, prompt_, 9, {.tokens = 12}, [&](int32_t) { return ++calls < 3; });
  EXPECT_EQ(calls, 3);
}

TEST_F(GenerateTest, NeedsAPrompt) {
  EXPECT_THROW(Generate(model_, std::vector<int32_t>{}, 9, {}), ArgumentError);
}

}  // namespace
}  // namespace lockstep::models
