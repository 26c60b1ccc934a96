// Loops of one's own on several ranks: the gradient of a sum and the number of its samples, however
// these are cut, and what a loop may forget: each throws on every rank, with the line to write.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "dist/data_parallel/data_parallel.h"
#include "dist/shard/fully_shard.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "tests/dist/in_process.h"
#include "tests/dist/ranks.h"
#include "tests/dist/toy_model.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;

constexpr int64_t kMicroBatches = 4;
constexpr int64_t kRowsOf[kMicroBatches] = {3, 5, 1, 4};  // samples of each micro-batch

Tensor LossOf(ToyModel& model, int64_t index, int64_t rows) {
  const ToyBatch batch = MakeToyBatch(index, rows);
  return ops::SoftmaxCrossEntropy(model(batch.x), batch.labels, Reduction::kSum);
}

std::vector<float> WholeWeights(const Module& model) {
  std::vector<Tensor> wholes;
  for (const auto& p : model.Parameters()) wholes.push_back(p->WholeOf(p->value().Detach()));
  return Flat(wholes);
}

// Two steps; with `equal`, micro-batches of 4 samples, else of kRowsOf. With `own_root`, the loop
// divides by itself.
template <class Ranks, class Options>
std::vector<float> Train(ProcessGroup* group, Options options, bool equal, bool own_root = false,
                         bool scaled = false) {
  options.sum = GradientSum::kOrdered;
  options.micro_batches = kMicroBatches;
  ToyModel model;
  Ranks parallel(group, model, options);
  optim::AdamW adamw(model.Parameters());
  StepState state(kCpu, 1);
  if (scaled) state.EnableLossScaling();
  const auto rows = [&](int64_t m) { return equal ? 4 : kRowsOf[m]; };
  const double all = equal ? 16 : 13;
  for (int64_t step = 0; step < 2; ++step) {
    const auto training = adamw.BeginStep(state, step, 1e-2);
    int64_t mine = 0;
    for (const int64_t m : parallel.micro_order()) mine += rows(m);
    for (const int64_t m : parallel.micro_order()) {
      const Tensor loss = LossOf(model, step * kMicroBatches + m, rows(m));
      if (own_root) {
        parallel.BeginMicroBatch(m == parallel.micro_order().back());
        Backward(loss, training.Root(1 / all));
      } else if (equal) {
        EXPECT_EQ(parallel.Backward(loss, rows(m), training), all);
      } else {
        EXPECT_EQ(parallel.Backward(loss, rows(m), training, mine), all);
      }
    }
    optim::ClipGradNorm(model.Parameters(), 1, state);
    adamw.Step(state);
    adamw.ZeroGrad();
  }
  return WholeWeights(model);
}

TEST(OwnLoops, ASumAndItsSamplesGiveTheGradientOfOneProcess) {
  for (const bool equal : {true, false}) {
    for (const bool scaled : {true, false}) {
      const auto alone = Train<DataParallel>(nullptr, ReducerOptions(), equal, true, scaled);
      EXPECT_EQ(Train<DataParallel>(nullptr, ReducerOptions(), equal, false, scaled), alone);
      EXPECT_EQ(Train<FullyShard>(nullptr, Zero2(), equal, false, scaled), alone);
      for (const int ranks : {2, 4}) {
        RunInProcess(ranks, [&](ProcessGroup& group) {
          EXPECT_EQ(Train<DataParallel>(&group, ReducerOptions(), equal, false, scaled), alone);
          EXPECT_EQ(Train<FullyShard>(&group, Zero3(), equal, false, scaled), alone);
        });
      }
    }
  }
}

// A rank's last batch may be shorter, or empty, and a loss of one element.
TEST(OwnLoops, RanksMayHaveDifferentNumbersOfSamples) {
  for (const int64_t second : {5, 0}) {
    std::vector<std::vector<float>> gradients(2);
    RunInProcess(2, [&](ProcessGroup& group) {
      ToyModel model;
      DataParallel parallel(&group, model);
      optim::Sgd sgd(model.Parameters());
      StepState state(kCpu, 1);
      const auto training = sgd.BeginStep(state, 0, 0.1);
      const int64_t rows = group.rank() == 0 ? 3 : second;
      Tensor loss = LossOf(model, 0, std::max<int64_t>(rows, 1));
      if (rows == 0) loss = loss * Tensor::Zeros({}, DType::kF32);
      EXPECT_EQ(parallel.Backward(loss.View({1}), rows, training), 3 + second);
      gradients[group.rank()] = GradientsOf(model);
    });
    ToyModel alone;
    const double all = static_cast<double>(3 + second);
    ToyBackward(alone, MakeToyBatch(0, 3), all);
    if (second > 0) ToyBackward(alone, MakeToyBatch(0, second), all);
    EXPECT_EQ(gradients[0], gradients[1]);
    EXPECT_LT(MaxDifference(gradients[0], GradientsOf(alone)), 1e-6);
  }
}

// What each of two ranks throws in a step of `body`. Those that learn of the other's error first
// say so.
std::vector<std::string> MistakesOf(
    const std::function<void(DataRanks&, ToyModel&, const optim::TrainingStep&)>& body,
    const ReducerOptions& options = {}, bool sharded = false) {
  return test::ErrorsOf(2, [&](ProcessGroup& group) {
    ToyModel model;
    std::unique_ptr<DataRanks> parallel;
    if (sharded) {
      parallel = std::make_unique<FullyShard>(&group, model,
                                              ShardOptions{.micro_batches = options.micro_batches});
    } else {
      parallel = std::make_unique<DataParallel>(&group, model, options);
    }
    optim::Sgd sgd(model.Parameters());
    StepState state(kCpu, 1);
    const auto training = sgd.BeginStep(state, 0, 0.1);
    body(*parallel, model, training);
  });
}

constexpr char kLine[] = "parallel.Backward(loss, samples, training";

TEST(OwnLoops, MicroBatchesOfDifferentSizesMustSayTheirSum) {
  const auto errors = MistakesOf(
      [](DataRanks& parallel, ToyModel& model, const optim::TrainingStep& training) {
        for (const int64_t rows : {4, 3}) {
          parallel.Backward(LossOf(model, 0, rows), rows, training);
        }
      },
      {.micro_batches = 4});
  EXPECT_THAT(errors, Contains(AllOf(HasSubstr("has 3 samples"), HasSubstr(kLine))));
  const auto wrong_sum = MistakesOf(
      [](DataRanks& parallel, ToyModel& model, const optim::TrainingStep& training) {
        for (const int64_t rows : {4, 3}) {
          parallel.Backward(LossOf(model, 0, rows), rows, training, 8);
        }
      },
      {.micro_batches = 4});
  EXPECT_THAT(wrong_sum, Contains(AllOf(HasSubstr("makes 7"), HasSubstr("to have 8"))));
}

TEST(OwnLoops, MoreMicroBatchesThanPlanned) {
  for (const bool sharded : {false, true}) {
    const auto errors = MistakesOf(
        [](DataRanks& parallel, ToyModel& model, const optim::TrainingStep& training) {
          for (int i = 0; i < 2; ++i) parallel.Backward(LossOf(model, 0, 4), 4, training);
        },
        {}, sharded);
    EXPECT_THAT(errors, Contains(HasSubstr(".micro_batches = 2 * (micro-batches of each rank)")));
  }
}

// 1 / (samples of this rank) looks like 1 / (samples of all). A root of 1 is a forgotten one.
TEST(OwnLoops, TheMeanOfARankIsRefusedWhereItCanBeTold) {
  for (const bool sharded : {false, true}) {
    const auto errors_of = [&](std::optional<double> root) {
      return MistakesOf(
          [&](DataRanks&, ToyModel& model, const optim::TrainingStep& training) {
            const Tensor loss = LossOf(model, 0, 4);
            root ? Backward(loss, training.Root(*root)) : Backward(loss);
          },
          {}, sharded);
    };
    EXPECT_THAT(errors_of({}), Contains(HasSubstr(kLine))) << "the default";
    EXPECT_THAT(errors_of(1), Contains(HasSubstr(kLine))) << "the default of Root";
    EXPECT_THAT(errors_of(0.125), Each("")) << "of all ranks";
  }
}

// ---- Micro-batches that are not told ----

TEST(OwnLoops, AForgottenBeginMicroBatchIsNamed) {
  const auto twice = [](DataRanks&, ToyModel& model, const optim::TrainingStep& training) {
    for (int i = 0; i < 2; ++i) Backward(LossOf(model, 0, 4), training.Root(1.0 / 16));
  };
  const auto names_it =
      AllOf(HasSubstr("parallel.BeginMicroBatch("), testing::Not(HasSubstr("ZeroGrad")));
  EXPECT_THAT(MistakesOf(twice, {.micro_batches = 4}), Contains(names_it));
  EXPECT_THAT(MistakesOf(twice, {}), Contains(names_it));
  EXPECT_THAT(MistakesOf(twice, {.sum = GradientSum::kOrdered, .micro_batches = 4}),
              Contains(names_it));
  EXPECT_THAT(MistakesOf(twice, {}, /*sharded=*/true),
              Contains(AllOf(HasSubstr(".micro_batches = "), testing::Not(HasSubstr("ZeroGrad")))));
}

// The last micro-batch was never said to be the last: nothing was summed, and replicas drift.
TEST(OwnLoops, GradientsThatWereNeverSummedAreNoticed) {
  const auto errors = test::ErrorsOf(2, [&](ProcessGroup& group) {
    ToyModel model;
    DataParallel parallel(&group, model, {.micro_batches = 4});
    optim::Sgd sgd(model.Parameters());
    StepState state(kCpu, 1);
    for (int64_t step = 0; step < 2; ++step) {
      const auto training = sgd.BeginStep(state, step, 0.1);
      for (int i = 0; i < 2; ++i) {
        parallel.BeginMicroBatch(/*last=*/false);
        Backward(LossOf(model, 0, 4), training.Root(1.0 / 16));
      }
      sgd.Step(state);
      sgd.ZeroGrad();
    }
  });
  EXPECT_THAT(errors, Contains(AllOf(HasSubstr("was never summed over the ranks"),
                                     HasSubstr("parallel.BeginMicroBatch("))));
}

TEST(OwnLoops, MicroBatchesMayBeDropped) {
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    DataParallel parallel(&group, model, {.micro_batches = 4});
    optim::Sgd sgd(model.Parameters());
    StepState state(kCpu, 1);
    const auto backward = [&](const optim::TrainingStep& training, bool last) {
      parallel.BeginMicroBatch(last);
      Backward(LossOf(model, 0, 4), training.Root(1.0 / 16));
    };
    const auto gradient = [&](bool drops_one) {
      const auto training = sgd.BeginStep(state, 0, 0.1);
      if (drops_one) {
        backward(training, /*last=*/false);
        sgd.ZeroGrad();
      }
      backward(training, false);
      backward(training, true);
      const Tensor first = model.Parameters()[0]->grad().Clone();
      sgd.ZeroGrad();
      return first.ToVector<float>();
    };
    EXPECT_EQ(gradient(true), gradient(false));
  });
}

// ---- Parameters that are frozen or unfrozen later ----

// Before the first step, or between two; on all ranks, or on one.
void FreezeLater(ProcessGroup& group, bool sharded, bool frozen, bool at_once) {
  ToyModel model;
  const auto set = [&](bool trainable) {
    for (const auto& p : model.shared->Parameters()) p->SetTrainable(trainable);
  };
  set(!frozen);
  std::unique_ptr<DataRanks> parallel;
  if (sharded) {
    parallel = std::make_unique<FullyShard>(&group, model);
  } else {
    parallel = std::make_unique<DataParallel>(&group, model);
  }
  StepState state(kCpu, 1);
  for (const bool changed : {false, true}) {
    if (at_once && !changed) continue;
    if (changed && (at_once || group.rank() == 1)) set(frozen);
    optim::Sgd sgd(model.Parameters());
    const auto training = sgd.BeginStep(state, changed ? 1 : 0, 0.1);
    parallel->Backward(LossOf(model, 0, 4), 4, training);
    sgd.Step(state);
    sgd.ZeroGrad();
  }
}

TEST(OwnLoops, WhatIsFrozenOrUnfrozenLaterIsNamed) {
  for (const bool sharded : {false, true}) {
    for (const bool trainable : {false, true}) {
      for (const bool at_once : {false, true}) {
        const auto errors = test::ErrorsOf(
            2, [&](ProcessGroup& group) { FreezeLater(group, sharded, trainable, at_once); });
        const std::string line = StrCat("SetTrainable(", trainable ? "true" : "false", ")");
        EXPECT_THAT(errors, Contains(AllOf(HasSubstr("'shared."), HasSubstr(line),
                                           HasSubstr(sharded ? "FullyShard" : "DataParallel"))))
            << sharded << trainable << at_once;
        EXPECT_THAT(errors, testing::Not(Contains("")));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::dist
