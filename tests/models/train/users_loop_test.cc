// The README's loop, as a user writes it, against the trainer: with dropout and batch norm, and two
// micro-batches per step.
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "models/train/step/trainer.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/linear.h"
#include "nn/vision/batch_norm.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

constexpr int64_t kRows = 4, kMicroBatches = 2, kSteps = 6, kWidth = 12;

class NormedModel : public LanguageModel {
 public:
  NormedModel() { Materialize(kCpu, 4); }

 protected:
  Tensor Forward(const Tensor& ids, const Tensor& targets) override {
    const Tensor x = drop_(embed_(ids)).View({ids.numel(), kWidth});
    return ops::SoftmaxCrossEntropy(head_(norm_(x)), targets.View({ids.numel()}), Reduction::kSum);
  }

 private:
  Child<Layer> embed_{this, "embed", std::make_shared<nn::Embedding>(13, kWidth)};
  Child<Layer> drop_{this, "drop", std::make_shared<nn::Dropout>(0.3)};
  Child<Layer> norm_{this, "norm", std::make_shared<nn::BatchNorm1d>(kWidth)};
  Child<Layer> head_{this, "head", std::make_shared<nn::Linear>(kWidth, 13)};
};

std::vector<std::vector<double>> StateOf(const Module& model) {
  std::vector<std::vector<double>> all;
  for (const auto& p : model.Parameters()) {
    all.push_back(p->value().Detach().To(DType::kF64).ToVector<double>());
  }
  for (const auto& [name, b] : model.NamedBuffers()) {
    all.push_back(b.To(DType::kF64).ToVector<double>());
  }
  return all;
}

data::BatchLayout Layout() { return {.batch_size = kRows, .micro_batches = kMicroBatches}; }

std::vector<std::vector<double>> ByTheTrainer() {
  const auto tokens = Tokens(300);
  NormedModel model;
  optim::AdamW adamw(model.Parameters());
  data::Loader loader(tokens, Shuffled(*tokens), Layout());
  Trainer trainer(model, adamw, SmallSchedule(), loader,
                  {.micro_batches = kMicroBatches, .clip = 1.0, .seed = 9});
  for (int64_t i = 0; i < kSteps; ++i) trainer.Step();
  return StateOf(model);
}

std::vector<std::vector<double>> ByHand(bool evaluate) {
  const auto tokens = Tokens(300);
  NormedModel model;
  optim::AdamW adamw(model.Parameters());
  const optim::LrSchedule schedule = SmallSchedule();
  data::Loader loader(tokens, Shuffled(*tokens), Layout());
  StepState state(kCpu, /*seed=*/9);
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto training = adamw.BeginStep(state, step, schedule(step));
    for (int64_t micro = 0; micro < kMicroBatches; ++micro) {
      const data::Batch& batch = loader.Next();
      const Shape shape{batch.rows, batch.cols};
      const Tensor ids = Tensor::FromVector<int32_t>(batch.inputs, shape);
      const Tensor targets = Tensor::FromVector<int32_t>(batch.targets, shape);
      training.SetFirstSample(micro * kRows);
      const Tensor loss = model.Loss(ids, targets);
      const auto targets_of_step = static_cast<double>(kMicroBatches * batch.num_targets);
      Backward(loss, Tensor::Full({}, 1 / targets_of_step, DType::kF32));
      if (evaluate) {
        const NoGrad evaluation;
        const double once = model.Loss(ids, targets).Item();
        EXPECT_EQ(model.Loss(ids, targets).Item(), once) << "no dropout, running statistics";
      }
    }
    optim::ClipGradNorm(adamw.parameters(), 1.0, state);
    adamw.Step(state);
    adamw.ZeroGrad();
  }
  return StateOf(model);
}

TEST(UsersLoop, HasTheTrainersBits) { EXPECT_EQ(ByHand(/*evaluate=*/false), ByTheTrainer()); }

TEST(UsersLoop, MayEvaluateWithinAStep) {
  EXPECT_EQ(ByHand(/*evaluate=*/true), ByHand(/*evaluate=*/false));
}

}  // namespace
}  // namespace lockstep::models
