// Training on tokens of which only some are learnt.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/train/step/trainer.h"
#include "optim/adamw.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

constexpr int64_t kRows = 4;  // samples of a step

class MaskedTokens : public data::MemoryTokens {
 public:
  MaskedTokens(std::span<const int32_t> tokens, std::vector<int32_t> learnt)
      : MemoryTokens(tokens), learnt_(std::move(learnt)) {}
  bool has_loss_mask() const override { return true; }

 private:
  void DoReadLossMask(int64_t offset, std::span<int32_t> out) const override {
    std::copy_n(learnt_.begin() + offset, out.size(), out.begin());
  }
  const std::vector<int32_t> learnt_;
};

// Rows of kWindow tokens, of whose tokens 1 to 5 row r learns 1 + r % 5. The others are `filler` at
// the row's end.
std::shared_ptr<const data::TokenSource> Masked(int32_t filler) {
  std::vector<int32_t> tokens, learnt;
  for (int64_t i = 0; i <= 40 * kWindow; ++i) {
    const int64_t row = i / kWindow, col = i % kWindow;
    tokens.push_back(col >= 6 ? filler : static_cast<int32_t>((i * i + 3 * row) % 13));
    learnt.push_back(col >= 1 && col <= 1 + row % 5 && col <= 5 ? 1 : 0);
  }
  return std::make_shared<MaskedTokens>(tokens, learnt);
}

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<float> weights;
};

Outcome Train(const std::shared_ptr<const data::TokenSource>& tokens, int64_t micro_batches) {
  Gpt model(SmallGpt(0));
  model.Materialize(kCpu, 4);
  optim::AdamW optimizer(model.Parameters());
  data::Loader loader(tokens, Shuffled(*tokens),
                      {.batch_size = kRows / micro_batches, .micro_batches = micro_batches});
  Trainer trainer(model, optimizer, SmallSchedule(), loader,
                  {.micro_batches = micro_batches, .seed = 9});
  Outcome run;
  for (int i = 0; i < 6; ++i) {
    const StepMetrics m = trainer.Step();
    run.losses.push_back(m.loss);
    run.norms.push_back(m.grad_norm);
  }
  run.weights = WeightsOf(model);
  return run;
}

// The mean over the step's targets, and not of the means of micro-batches with unequally many.
TEST(MaskedTraining, AccumulationGivesTheSameStepsUpToRounding) {
  const auto tokens = Masked(0);
  const Outcome whole = Train(tokens, 1);
  for (const int64_t micro_batches : {2, 4}) {
    const Outcome parts = Train(tokens, micro_batches);
    for (size_t i = 0; i < whole.losses.size(); ++i) {
      EXPECT_NEAR(parts.losses[i], whole.losses[i], 1e-5) << i;
      EXPECT_NEAR(parts.norms[i], whole.norms[i], 1e-4 * whole.norms[i]) << i;
    }
  }
}

TEST(MaskedTraining, TheLossIsTheMeanOverTheTargetsOfTheStep) {
  const auto tokens = Masked(0);
  Gpt model(SmallGpt(0));
  model.Materialize(kCpu, 4);
  data::Loader loader(tokens, Shuffled(*tokens), {.batch_size = 1, .micro_batches = kRows});
  double sum = 0, of_means = 0;
  int64_t targets = 0;
  for (int64_t m = 0; m < kRows; ++m) {
    const data::Batch& batch = loader.Next();
    const Tensor logits = model(Tensor::FromVector<int32_t>(batch.inputs, {1, kWindow}));
    const std::vector<float> values = logits.Detach().ToVector<float>();
    double of_row = 0;
    int64_t in_row = 0;
    for (size_t t = 0; t < batch.targets.size(); ++t) {
      if (batch.targets[t] < 0) continue;
      double all = 0;
      for (size_t v = 0; v < 13; ++v) all += std::exp(static_cast<double>(values[t * 13 + v]));
      of_row += std::log(all) - values[t * 13 + static_cast<size_t>(batch.targets[t])];
      ++in_row;
    }
    sum += of_row;
    targets += in_row;
    of_means += of_row / static_cast<double>(in_row) / kRows;
    EXPECT_EQ(batch.num_targets, in_row);
  }
  const double mean = sum / static_cast<double>(targets);
  ASSERT_GT(std::abs(of_means - mean), 1e-3) << "the rows must differ for this test to tell";
  for (const int64_t micro_batches : {1, 2, 4}) {
    EXPECT_NEAR(Train(tokens, micro_batches).losses[0], mean, 1e-5) << micro_batches;
  }
}

// Tokens behind the last one that is learnt are seen by no target that counts.
TEST(MaskedTraining, TargetsThatAreNotLearntChangeNothing) {
  const Outcome a = Train(Masked(0), 2), b = Train(Masked(11), 2);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.weights, b.weights);
}

}  // namespace
}  // namespace lockstep::models
