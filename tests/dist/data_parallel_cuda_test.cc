// Data parallelism on GPUs through NCCL: the promises that data_parallel_test.cc and
// reducer_test.cc test on CPU ranks.
#include <cuda_runtime.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "core/cuda/error.h"
#include "core/stream.h"
#include "dist/data_parallel/arrival_clock.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/toy_training.h"
#include "tests/message_of.h"
#include "tests/sanitized.h"

namespace lockstep::dist {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr auto RunOnAll = [](int ranks, const auto& body) { RunOnGpus(ranks, body); };

// Weights, clipping and norms, to the bit; and promise 10: whatever the buckets.
TEST(DataParallelCuda, OrderedTrainingDoesNotDependOnTheGpus) {
  SKIP_WITHOUT_GPUS(8);
  const ReducerOptions ordered{.sum = GradientSum::kOrdered};
  const int64_t steps = test::kSanitized ? 3 : 20;
  const ToyOutcome alone = TrainToyOn(RunOnAll, 1, 8, ordered, steps);
  for (const int ranks : {2, 4, 8}) {
    EXPECT_EQ(TrainToyOn(RunOnAll, ranks, 8, ordered, steps), alone) << ranks;
  }
  const ToyOutcome fast = TrainToyOn(RunOnAll, 4, 8, {}, steps);
  EXPECT_LT(MaxDifference(fast.weights, alone.weights), 1e-5);
  const ToyOutcome on_cpu = TrainToy(nullptr, 8, ordered, steps);
  EXPECT_LT(MaxDifference(on_cpu.weights, alone.weights), 1e-5);
}

// Promise 11.
TEST(DataParallelCuda, TwoGpusAreAccumulationOverTwo) {
  SKIP_WITHOUT_GPUS(2);
  const ToyOutcome two = TrainToyOn(RunOnAll, 2, 2, {}, 5);
  EXPECT_EQ(two, TrainToyOn(RunOnAll, 1, 2, {.sum = GradientSum::kOrdered}, 5));
}

TEST(DataParallelCuda, TheTimeOfArrivalIsReadOnceADeviceThatIsStepsBehindHasArrived) {
  RUN_OR_SKIP(1, [](ProcessGroup& group) {
    const Stream stream = CurrentStream(group.device());
    std::promise<void> release;
    std::shared_future<void> released(release.get_future());
    ArrivalClock clock(&group);
    const auto step = [&] {
      clock.Computed();
      clock.Summed();
    };
    step();
    const auto wait = [](void* until) { static_cast<std::shared_future<void>*>(until)->wait(); };
    LS_CUDA(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream.handle.get()), wait, &released));
    for (int i = 0; i < 4; ++i) step();
    EXPECT_EQ(clock.ms(), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    release.set_value();
    Synchronize(stream);
    step();
    EXPECT_GT(clock.ms(), 15);
  });
  EXPECT_THAT(errors, Each(""));
}

// Promise 5.
TEST(DataParallelCuda, RefusesModelsThatDiffer) {
  RUN_OR_SKIP(2, [&](ProcessGroup& group) {
    ToyModel model(1, group.rank() == 0 ? 16 : 8, group.device());
    DataParallel parallel(&group, model);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("parameter 'in.weight' f32[16, 6] on rank 0"),
                                 HasSubstr("f32[8, 6] on rank 1"))));
}

// Promise 6 for reducers: ranks that were started with different buckets.
TEST(DataParallelCuda, BucketsThatDifferAreAnErrorOnEveryRank) {
  RUN_OR_SKIP(2,
              [](ProcessGroup& group) {
                ToyModel model(1, 16, group.device());
                ReducerOptions options = Small();
                if (group.rank() == 1) options.bucket_bytes *= 4;
                Reducer reducer(&group, model.Parameters(), options);
                ToyBackward(model, MakeToyBatch(group.rank()), 1);
              },
              {.check_every_call = true});
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("ranks do not call the same operation"),
                         HasSubstr("rank 0 all_reduce #"), HasSubstr("rank 1 all_reduce #"))));
}

// Promise 8.
TEST(DataParallelCuda, RanksWithoutDataJoin) {
  SKIP_WITHOUT_GPUS(2);
  RunOnGpus(2, [](ProcessGroup& group) { CheckRanksWithoutDataJoin(group, Small(), 1e-5); });
}

// Promise 9: one bit of one weight of one GPU.
TEST(DataParallelCuda, DriftIsFound) {
  RUN_OR_SKIP(3, [&](ProcessGroup& group) {
    ToyModel model(1, 16, group.device());
    DataParallel parallel(&group, model);
    parallel.CheckWeights("after step 10");
    if (group.rank() == 2) {
      const Tensor weight = model.Parameters()[0]->value().Detach();
      const Tensor changed = weight.To(kCpu);
      static_cast<uint8_t*>(changed.raw_data())[4] ^= 1;
      weight.CopyFrom(changed);
    }
    parallel.CheckWeights("after step 20");
  });
  EXPECT_THAT(errors, Each(HasSubstr("the weights after step 20 are not the same on all ranks: "
                                     "'in.weight' of rank 2 differs from that of ranks 0 and 1")));
}

// Work that waits on the GPUs is aborted.
TEST(DataParallelCuda, ARankThatLeavesTheLoopEarlyIsNamedAtOnce) {
  for (const int leaves_at : {0, 1, 2}) {
    const auto begin = std::chrono::steady_clock::now();
    RUN_OR_SKIP(2, [&](ProcessGroup& group) { TrainUntilRank1Leaves(group, leaves_at); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
    EXPECT_EQ(errors[1], "");
    EXPECT_THAT(errors[0], HasSubstr("rank 1 has left the group"));
  }
}

}  // namespace
}  // namespace lockstep::dist
