// Ranks that wait for each other in different calls, or in calls of one group that look alike: the
// error names what each rank's program called, and a rank says on stderr that it waits.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/data_parallel/data_parallel.h"
#include "dist/data_parallel/training_file.h"
#include "dist/groups/pause.h"
#include "dist/shard/fully_shard.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "tests/dist/ranks.h"
#include "tests/dist/toy_model.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

struct Loop {
  DataRanks& parallel;
  ToyModel& model;
  optim::Sgd& sgd;
  StepState& state;

  // Divides by itself, so that it calls only the group of gradients, unless `by_call`.
  void Step(int64_t step, bool by_call = false) const {
    const auto training = sgd.BeginStep(state, step, 0.1);
    const ToyBatch batch = MakeToyBatch(parallel.rank());
    const Tensor loss = ops::SoftmaxCrossEntropy(model(batch.x), batch.labels, Reduction::kSum);
    by_call ? (void)parallel.Backward(loss, 4, training) : Backward(loss, training.Root(1.0 / 8));
    optim::ClipGradNorm(model.Parameters(), 1, state);
    sgd.Step(state);
    sgd.ZeroGrad();
  }
  void Save() const {
    SaveTraining(StrCat(testing::TempDir(), "/waits.", getpid()), parallel, model, sgd, state);
  }
};

// What two ranks throw, with calls that time out after two seconds.
std::vector<std::string> Errors(bool sharded, const std::function<void(const Loop&)>& body,
                                milliseconds timeout = milliseconds(2000)) {
  return test::ErrorsOf(2,
                        [&](ProcessGroup& group) {
                          ToyModel model;
                          std::unique_ptr<DataRanks> parallel;
                          if (sharded) {
                            parallel = std::make_unique<FullyShard>(&group, model);
                          } else {
                            parallel = std::make_unique<DataParallel>(&group, model);
                          }
                          optim::Sgd sgd(model.Parameters());
                          StepState state(kCpu, 1);
                          body({*parallel, model, sgd, state});
                        },
                        {.timeout = timeout});
}

const auto kAdvice = AllOf(HasSubstr("if (parallel.is_main())"), HasSubstr("more batches"));

TEST(Waits, ACollectiveOfOnlyOneRankIsNamed) {
  testing::internal::CaptureStderr();
  const auto errors = Errors(false, [](const Loop& loop) {
    loop.Step(0);
    if (loop.parallel.is_main()) loop.Save();
    loop.Step(1);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("SaveTraining"), HasSubstr("Backward"), kAdvice)));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("has waited for "), HasSubstr("SaveTraining"),
                          HasSubstr("Backward"), kAdvice));
  EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 2) << "once a rank:\n" << said;
}

TEST(Waits, UnequalNumbersOfBatchesAreNamed) {
  for (const bool sharded : {false, true}) {
    const auto errors = Errors(sharded, [](const Loop& loop) {
      for (int64_t step = 0; step < 2 + loop.parallel.rank(); ++step) loop.Step(step);
      loop.parallel.CheckWeights("at the end");
      loop.parallel.Sum(1.0);
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr(sharded ? "a forward" : "Backward"),
                                   HasSubstr(sharded ? "of Sum" : "CheckWeights"))));
  }
}

// The number of samples would otherwise be added to whether the file was written.
TEST(Waits, ACollectiveOfOnlyOneRankIsNamedAtOnceWhereTheOtherIsInTheSameGroup) {
  const auto errors = Errors(
      false,
      [](const Loop& loop) {
        loop.Step(0, /*by_call=*/true);
        if (loop.parallel.is_main()) loop.Save();
        loop.Step(1, /*by_call=*/true);
      },
      std::chrono::minutes(5));
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("SaveTraining"), HasSubstr("Backward"), kAdvice)));
}

// Which would otherwise take one rank's value for the other's.
TEST(Waits, CallsOfOneGroupThatLookAlikeAreToldApart) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = Errors(
      false,
      [](const Loop& loop) {
        if (loop.parallel.rank() == 0) {
          (void)loop.parallel.Any(true);
        } else {
          (void)loop.parallel.Sum(int64_t{7});
        }
      },
      std::chrono::minutes(5));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("of Any"), HasSubstr("of Sum"))));
}

// A rank that is slow, or that says what it does.
TEST(Waits, OfABusyRankNothingIsSaid) {
  for (const bool pauses : {false, true}) {
    testing::internal::CaptureStderr();
    test::RunRanks(2,
                   [&](ProcessGroup& group) {
                     if (group.rank() == 0) {
                       std::optional<Pause> pause;
                       if (pauses) pause.emplace(&group, "writing a report");
                       std::this_thread::sleep_for(milliseconds(1600));
                     }
                     group.Barrier()->Wait();
                   },
                   {.timeout = milliseconds(2000)});
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  }
}

}  // namespace
}  // namespace lockstep::dist
