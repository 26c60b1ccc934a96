// What --budget chooses: the law of the loss, and the size, batch and steps that follow from it.
#include "models/train/budget/budget.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/options/depth_laws.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

constexpr double kMuch = 1e13;  // tokens: nothing is repeated

TEST(Budget, IsATimeFlopsOrTokens) {
  for (const auto& [text, unit, amount] : {std::tuple("90s", Budget::Unit::kSeconds, 90.0),
                                           {"10m", Budget::Unit::kSeconds, 600.0},
                                           {"1.5h", Budget::Unit::kSeconds, 5400.0},
                                           {"1d", Budget::Unit::kSeconds, 86400.0},
                                           {"1e18 flops", Budget::Unit::kFlops, 1e18},
                                           {"3e9tokens", Budget::Unit::kTokens, 3e9}}) {
    const Budget budget = ParseBudget(text);
    EXPECT_EQ(budget.unit, unit) << text;
    EXPECT_EQ(budget.amount, amount) << text;
  }
  for (const char* text : {"", "10", "m", "-1m", "0s", "1e400h", "nans", "10 minutes", "10m "}) {
    EXPECT_THAT(test::MessageOf<InputError>([&] { ParseBudget(text); }),
                HasSubstr("must be a time, such as 90s, 10m"))
        << text;
  }
}

// The runs that its constants come from.
TEST(ExpectedLoss, IsThatOfKnownRuns) {
  EXPECT_NEAR(ExpectedLossPerByte(795e3, 153.6e3, 1e6), 1.88, 0.05);
  EXPECT_NEAR(ExpectedLossPerByte(795e3, 2.2e6, 1e6), 1.53, 0.05);
  EXPECT_NEAR(ExpectedLossPerByte(124e6, 10e9, kMuch), 3.28 / 4.6, 0.03);  // bytes of a token
}

// With C = 6 N D fixed, 10.5 tokens for each parameter are best.
TEST(ExpectedLoss, IsLeastAtTheComputeOptimalRatio) {
  for (const double flops : {1e14, 1e18, 1e22}) {
    const auto loss = [&](double ratio) {
      const double parameters = std::sqrt(flops / 6 / ratio);
      return ExpectedLossPerByte(parameters, ratio * parameters, 1e20);
    };
    for (const double other : {2.0, 5.0, 8.0, 13.0, 20.0, 50.0}) {
      EXPECT_LT(loss(kTokensPerParameter), loss(other)) << flops << " " << other;
    }
  }
}

// Muennighoff et al., figure 1 and section 6: up to four passes are nearly as good as new data, and
// at most 1 + 15.4 times as much is to be had.
TEST(ExpectedLoss, RepeatedTokensAreWorthLess) {
  const double n = 1e6, data = 1e8;
  const double fresh = ExpectedLossPerByte(n, 4 * data, kMuch);
  const double repeated = ExpectedLossPerByte(n, 4 * data, data);
  EXPECT_GT(repeated, fresh);
  EXPECT_LT(repeated, ExpectedLossPerByte(n, 3.6 * data, kMuch));
  EXPECT_GT(ExpectedLossPerByte(n, 1e4 * data, data), ExpectedLossPerByte(n, 16.5 * data, kMuch));
  // Nor do parameters help that the data cannot fill.
  EXPECT_GT(ExpectedLossPerByte(1e9, data, data), ExpectedLossPerByte(6.5e7, data, kMuch));
}

TEST(ChooseFor, FlopsAreSpentAtAboutTheOptimalRatio) {
  int64_t last = 0;
  for (const double flops : {1e13, 1e15, 1e17, 1e19, 1e21}) {
    const auto choices =
        ChooseFor({Budget::Unit::kFlops, flops}, {.tokens = kMuch, .vocab_size = 8192});
    const Choice& best = choices.front();
    EXPECT_GT(best.depth, last) << flops;
    last = best.depth;
    // Attention costs FLOPs, too, and depths are whole.
    EXPECT_GT(best.tokens_per_parameter, kTokensPerParameter / 4) << flops;
    EXPECT_LT(best.tokens_per_parameter, kTokensPerParameter * 4) << flops;
    EXPECT_LE(static_cast<double>(best.batch * best.steps) * FlopsPerTokenOf(best.depth, 8192),
              flops);
    for (size_t i = 1; i < choices.size(); ++i) {
      EXPECT_EQ(std::abs(choices[i].depth - best.depth), 1);
      EXPECT_GE(1.001 * choices[i].expected_loss, best.expected_loss);
    }
  }
}

// What was measured on two cores: some 1e11 FLOP/s. Ten minutes make a model of about a million
// parameters, a night a much larger one, unless the text is small.
TEST(ChooseFor, TimeIsSpentAtTheMeasuredSpeed) {
  const Means means{.tokens = 1e8, .vocab_size = 256, .speeds = {{1e6, 6e10}, {3e7, 1.2e11}}};
  const Choice ten = ChooseFor(ParseBudget("10m"), means).front();
  EXPECT_GE(ten.depth, 3);
  EXPECT_LE(ten.depth, 5);
  EXPECT_LE(ten.seconds, 600);
  EXPECT_GT(ten.seconds, 500);
  const Choice night = ChooseFor(ParseBudget("10h"), means).front();
  EXPECT_GT(night.depth, ten.depth);
  EXPECT_LT(night.expected_loss, ten.expected_loss);
  Means little = means;
  little.tokens = 1e6;
  const Choice repeats = ChooseFor(ParseBudget("10h"), little).front();
  EXPECT_LE(repeats.depth, night.depth);
  EXPECT_LE(repeats.epochs, 16.4);
  EXPECT_LT(repeats.seconds, 36000);  // the rest would be of no use
  EXPECT_GT(repeats.expected_loss, night.expected_loss);
}

TEST(ChooseFor, TokensMakeTheModelForWhichTheyAreOptimal) {
  for (const int64_t depth : {4, 12, 20}) {
    const double tokens = kTokensPerParameter * ParametersOf(depth, 32768);
    const auto choices =
        ChooseFor({Budget::Unit::kTokens, tokens}, {.tokens = kMuch, .vocab_size = 32768});
    EXPECT_EQ(choices.front().depth, depth);
    EXPECT_EQ(choices.front().seconds, 0);
  }
}

// What is chosen can be typed: the run has that shape, batch and length.
TEST(ChooseFor, ItsChoiceIsWhatTheDialMakesOfIt) {
  const Choice choice =
      ChooseFor({Budget::Unit::kFlops, 1e15}, {.tokens = 1e8, .vocab_size = 256}).front();
  const RunConfig run =
      ParsedRun({StrCat("--depth=", choice.depth),
                 StrCat("--train.tokens_per_parameter=", choice.tokens_per_parameter)})
          .config;
  EXPECT_EQ(run.train.global_batch_size * run.model.block_size, choice.batch);
}

TEST(ChooseFor, TooLittleIsAnError) {
  EXPECT_THAT(test::MessageOf<InputError>([] {
                ChooseFor({Budget::Unit::kTokens, 10}, {.tokens = 1e6, .vocab_size = 256});
              }),
              HasSubstr("too small"));
}

}  // namespace
}  // namespace lockstep::models
