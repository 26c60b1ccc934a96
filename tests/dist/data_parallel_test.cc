#include "dist/data_parallel/data_parallel.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <mutex>

#include "dist/shard/fully_shard.h"
#include "kernels/dropout/dropout.h"
#include "nn/precision.h"
#include "nn/state.h"
#include "optim/sgd.h"
#include "tests/dist/in_process.h"
#include "tests/dist/ranks.h"
#include "tests/dist/toy_training.h"
#include "tests/message_of.h"
#include "tests/sanitized.h"

namespace lockstep::dist {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr auto RunOnCpus = [](int ranks, const auto& body) { RunInProcess(ranks, body); };

// Weights, clipping and norms are the same to the bit at 1, 2 and 4 ranks with 8 micro-batches, and
// at 1, 3 and 6 with 12.
TEST(DataParallel, OrderedTrainingDoesNotDependOnTheRanks) {
  const ReducerOptions ordered{.sum = GradientSum::kOrdered};
  const int64_t steps = lockstep::test::kSanitized ? 10 : 100;
  for (const auto& [leaves, counts] :
       {std::pair(8, std::vector{1, 2, 4}), std::pair(12, std::vector{1, 3, 6})}) {
    const ToyOutcome alone = TrainToy(nullptr, leaves, ordered, steps);
    for (const int ranks : counts)
      EXPECT_EQ(TrainToyOn(RunOnCpus, ranks, leaves, ordered, steps), alone) << ranks;
    const ToyOutcome fast = TrainToyOn(RunOnCpus, counts.back(), leaves, {}, steps);
    EXPECT_LT(MaxDifference(fast.weights, alone.weights), 1e-5)
        << "the fast mode is as good, if not the same";
  }
}

// Refuses what is right in one process but silently wrong in several: the gradient of a mean, and
// dropout that draws as if each rank had the step's first samples.
TEST(DataParallel, RefusesMeansAndSharedMasks) {
  enum class Way { kMean, kMeanOfRoots, kSharedMasks };
  for (const Way way : {Way::kMean, Way::kMeanOfRoots, Way::kSharedMasks}) {
    const bool mean = way != Way::kSharedMasks;
    const auto errors = test::ErrorsOf(2, [&](ProcessGroup& group) {
      ToyModel model;
      DataParallel parallel(&group, model);
      optim::AdamW adamw(model.Parameters());
      StepState state(kCpu, 1);
      const auto training = adamw.BeginStep(state, 0, 0.1);
      const ToyBatch batch = MakeToyBatch(group.rank());
      const Tensor y = ops::Dropout(model(batch.x), mean ? 0 : 0.5, /*site=*/3);
      const Tensor loss = ops::SoftmaxCrossEntropy(y, batch.labels);
      if (way == Way::kMean) Backward(loss);
      if (way == Way::kMeanOfRoots) Backward(std::span(&loss, 1), {});
      Backward(loss, Tensor::Full({}, 0.5, DType::kF32));
    });
    // The other rank may learn of it before it gets there.
    EXPECT_THAT(errors,
                testing::Contains(HasSubstr(mean ? "parallel.Backward(loss, samples, training);"
                                                 : ".first_sample = rank * batch_size")));
    EXPECT_THAT(errors, testing::Not(testing::Contains("")));
  }
}

TEST(DataParallel, StartsWithTheWeightsAndBuffersOfRank0) {
  class WithBuffer : public ToyModel {
   public:
    explicit WithBuffer(int rank) : ToyModel(1 + static_cast<uint64_t>(rank)) {
      AddBuffer("step", Tensor::Full({2}, rank, DType::kI64));
      Materialize(kCpu, 1 + static_cast<uint64_t>(rank));
    }
  };
  RunInProcess(3, [](ProcessGroup& group) {
    WithBuffer model(group.rank()), of_rank_0(0);
    EXPECT_EQ(WeightsOf(model) == WeightsOf(of_rank_0), group.rank() == 0);
    DataParallel parallel(&group, model);
    EXPECT_EQ(WeightsOf(model), WeightsOf(of_rank_0));
    EXPECT_THAT(model.NamedBuffers()[0].second.ToVector<int64_t>(), Each(0));
    EXPECT_EQ(parallel.rank(), group.rank());
    EXPECT_EQ(parallel.size(), 3);
    EXPECT_EQ(parallel.is_main(), group.rank() == 0);
  });
}

TEST(DataParallel, RefusesModelsThatDiffer) {
  std::vector<std::string> messages(2);
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model(1, group.rank() == 0 ? 16 : 8);
    messages[group.rank()] =
        lockstep::test::MessageOf<ReplicaError>([&] { DataParallel parallel(&group, model); });
  });
  EXPECT_THAT(messages, Each(HasSubstr("parameter 'in.weight' f32[16, 6] on rank 0")));
}

// Promise 9, in a loop: found at the next comparison.
TEST(DataParallel, DriftIsFound) {
  std::vector<std::string> messages(3);
  RunInProcess(3, [&](ProcessGroup& group) {
    ToyModel model;
    DataParallel parallel(&group, model);
    parallel.CheckWeights("after step 10");
    if (group.rank() == 2) {
      static_cast<uint8_t*>(model.Parameters()[0]->value().raw_data())[0] ^= 1;
    }
    messages[group.rank()] =
        lockstep::test::MessageOf<ReplicaError>([&] { parallel.CheckWeights("after step 20"); });
  });
  EXPECT_THAT(messages,
              Each(HasSubstr("the weights after step 20 are not the same on all ranks: "
                             "'in.weight' of rank 2 differs from that of ranks 0 and 1")));
}

TEST(DataParallel, SumsSmallValues) {
  RunInProcess(3, [](ProcessGroup& group) {
    ToyModel model;
    DataParallel parallel(&group, model);
    EXPECT_EQ(parallel.Sum(int64_t{1} << (40 + group.rank())), int64_t{7} << 40);
    EXPECT_EQ(parallel.Sum(0.5 * group.rank()), 1.5);
    EXPECT_FALSE(parallel.Any(false));
    EXPECT_TRUE(parallel.Any(group.rank() == 1));
    std::vector<double> values(4);
    values[group.rank()] = 0.1 * (1 + group.rank());
    parallel.SumInPlace(&values);
    EXPECT_THAT(values, testing::ElementsAre(0.1, 0.1 * 2, 0.1 * 3, 0));
    ToyBackward(model, MakeToyBatch(group.rank()), 1);
    parallel.CheckGradients();
  });
  ToyModel model;
  DataParallel alone(nullptr, model);
  EXPECT_EQ(alone.Sum(int64_t{5}), 5);
  EXPECT_EQ(alone.Sum(2.5), 2.5);
  EXPECT_TRUE(alone.is_main());
  alone.CheckWeights("now");
  alone.CheckGradients();
}

// `if (rank == 1) return 0;` in a loop, whatever the others are doing.
TEST(DataParallel, ARankThatLeavesTheLoopEarlyIsNamedAtOnce) {
  for (const int ranks : {2, 3}) {
    for (const int leaves_at : {0, 1, 2}) {
      const auto begin = std::chrono::steady_clock::now();
      auto errors = test::ErrorsOf(
          ranks, [&](ProcessGroup& group) { TrainUntilRank1Leaves(group, leaves_at); },
          {.timeout = std::chrono::seconds(60)});
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
      EXPECT_EQ(errors[1], "") << "it may end early";
      errors.erase(errors.begin() + 1);
      EXPECT_THAT(errors, Each(HasSubstr("rank 1 has left the group"))) << leaves_at;
    }
  }
}

// ---- FullyShard ----

// Three steps of four micro-batches, with `shared` used twice in each forward.
template <class Ranks, class Options>
std::vector<float> TrainSharedOut(ProcessGroup* group, const Options& options,
                                  const std::string& frozen) {
  ToyModel model(group ? 1 + group->rank() : 1);
  for (const auto& [name, p] : model.NamedParameters()) {
    if (name.starts_with(frozen)) p->SetTrainable(false);
  }
  Ranks parallel(group, model, options);
  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.1});
  StepState state(kCpu, 1);
  for (int64_t step = 0; step < 3; ++step) {
    const auto training = adamw.BeginStep(state, step, 1e-2);
    for (const int64_t m : parallel.micro_order()) {
      parallel.BeginMicroBatch(m == parallel.micro_order().back());
      ToyBackward(model, MakeToyBatch(step * 4 + m), 16);
    }
    optim::ClipGradNorm(model.Parameters(), 0.05, state);
    adamw.Step(state);
    adamw.ZeroGrad();
  }
  std::vector<Tensor> wholes;
  for (const auto& p : model.Parameters()) wholes.push_back(p->WholeOf(p->value().Detach()));
  return Flat(wholes);
}

// A user's dtype of sums that ranks would not keep is refused, whichever comes first.
TEST(FullyShard, SumsInOtherDTypesAreRefused) {
  const auto says = AllOf(HasSubstr("are to be in bf16"), HasSubstr(".reduction = DType::kF32"));
  const nn::Precision narrow{.compute = DType::kBF16, .reduction = DType::kBF16};
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    nn::Materialize(model, kCpu, 4, narrow);
    EXPECT_THAT(lockstep::test::MessageOf([&] { DataParallel parallel(&group, model); }), says);
    EXPECT_THAT(lockstep::test::MessageOf([&] { FullyShard sharded(&group, model); }), says);
    ToyModel before;
    FullyShard sharded(&group, before, {.micro_batches = 2});
    nn::Materialize(before, kCpu, 4, narrow);
    EXPECT_THAT(
        lockstep::test::MessageOf([&] { ToyBackward(before, MakeToyBatch(group.rank()), 2); }),
        says);
  });
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel wide;
    nn::Materialize(wide, kCpu, 4, {.reduction = DType::kF64});
    EXPECT_THAT(lockstep::test::MessageOf([&] { DataParallel parallel(&group, wide); }),
                HasSubstr("gradients of f32 are summed in f32"));
  });
  // What nobody asked for is no error: sums of 16-bit parameters are in f32.
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel plain;
    nn::Materialize(plain, kCpu, 4, {.compute = DType::kBF16});
    EXPECT_EQ(lockstep::test::MessageOf([&] { DataParallel parallel(&group, plain); }), "no error");
  });
}

TEST(FullyShard, TrainsAsOneProcessDoes) {
  for (const std::string frozen : {"none", "shared", "in.weight"}) {
    const auto alone = TrainSharedOut<DataParallel>(
        nullptr, ReducerOptions{.sum = GradientSum::kOrdered, .micro_batches = 4}, frozen);
    for (const int ranks : {1, 2, 4}) {
      for (ShardOptions options : {Zero1(), Zero2(), Zero3()}) {
        options.sum = GradientSum::kOrdered;
        options.micro_batches = 4;
        RunInProcess(ranks, [&](ProcessGroup& group) {
          EXPECT_EQ(TrainSharedOut<FullyShard>(&group, options, frozen), alone) << frozen;
        });
        EXPECT_EQ(TrainSharedOut<FullyShard>(nullptr, options, frozen), alone) << "no group";
      }
    }
  }
}

// In the library's order, at two ranks with one micro-batch each, there is only one sum.
TEST(FullyShard, FastSumsAreThoseOfDataParallel) {
  const auto train = [](auto* ranks) {
    using Ranks = std::remove_pointer_t<decltype(ranks)>;
    std::vector<float> weights;
    RunInProcess(2, [&](ProcessGroup& group) {
      ToyModel model;
      Ranks parallel(&group, model);
      optim::Sgd sgd(model.Parameters());
      StepState state(kCpu, 1);
      const auto training = sgd.BeginStep(state, 0, 1e-1);
      ToyBackward(model, MakeToyBatch(group.rank()), 8);
      sgd.Step(state);
      std::vector<Tensor> wholes;
      for (const auto& p : model.Parameters()) wholes.push_back(p->WholeOf(p->value().Detach()));
      if (group.rank() == 0) weights = Flat(wholes);
    });
    return weights;
  };
  EXPECT_EQ(train(static_cast<FullyShard*>(nullptr)), train(static_cast<DataParallel*>(nullptr)));
}

Tensor LossOf(ToyModel& model) {
  const ToyBatch batch = MakeToyBatch(0);
  return ops::SoftmaxCrossEntropy(model(batch.x), batch.labels, Reduction::kSum);
}

TEST(FullyShard, ItsMistakesAreNamed) {
  using lockstep::test::MessageOf;
  // Not a barrier of the group: a rank that throws ends that for those that have yet to leave it.
  std::latch all_have_the_loss(2);
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    {
      FullyShard sharded(&group, model);
      EXPECT_LT(model.Parameters()[0]->value().numel(), 6 * 16 + 1);
      EXPECT_EQ(model.Parameters()[0]->value().ndim(), 1) << "a part";
      {
        const FullyShard::Whole whole(sharded);
        EXPECT_EQ(model.Parameters()[0]->value().shape(), Shape({16, 6}));
        model.Parameters()[0]->value().Detach().Fill(2);
      }
      const Tensor kept = model.Parameters()[0]->value().Detach();
      EXPECT_EQ(kept.ToVector<float>(), std::vector<float>(kept.numel(), 2.f));
      EXPECT_THAT(MessageOf([&] { nn::SaveModule(model, "x"); }),
                  HasSubstr("save the module within a dist::FullyShard::Whole"));
      ToyBackward(model, MakeToyBatch(0), 4);
      const Tensor loss = LossOf(model);
      all_have_the_loss.arrive_and_wait();
      EXPECT_THAT(MessageOf([&] { Backward(loss, Tensor::Full({}, 1, DType::kF32)); }),
                  HasSubstr("already has a gradient at the start of the step: call ZeroGrad"));
    }
    EXPECT_THAT(MessageOf([&] { model(MakeToyBatch(0).x); }),
                HasSubstr("the FullyShard that gathers the weights of 'in' has been destroyed"));
  });
}

// A destructor cannot throw.
TEST(FullyShard, WeightsThatCannotBeKeptEndTheRanksWork) {
  for (const bool keep : {true, false}) {
    std::vector<std::string> errors(2);
    EXPECT_THAT(lockstep::test::MessageOf<Error>([&] {
                  RunInProcess(2, [&](ProcessGroup& group) {
                    ToyModel model;
                    FullyShard sharded(&group, model);
                    const auto write = [&] {
                      FullyShard::Whole whole(sharded);
                      const Parameter& first = *model.Parameters()[0];
                      first.value().Detach().Fill(2);
                      whole.Keep();
                      EXPECT_EQ(first.part().ToVector<float>(),
                                std::vector<float>(static_cast<size_t>(first.part().numel()), 2.f));
                      for (const auto& p : model.Parameters()) {
                        p->value().Detach().Fill(3);
                        if (group.rank() == 1) p->part().storage().Release();
                      }
                      if (keep) whole.Keep();
                    };
                    try {
                      write();
                      EXPECT_FALSE(keep && group.rank() == 1);
                      model(MakeToyBatch(0).x);
                    } catch (const Error& e) {
                      errors[static_cast<size_t>(group.rank())] = e.what();
                      throw;
                    }
                  });
                }),
                HasSubstr("was released"));
    EXPECT_THAT(errors[0], HasSubstr("rank 1 gave up"));
    EXPECT_THAT(errors[1], keep ? testing::StartsWith("the memory")
                                : testing::StartsWith("what was written to the whole weights is "
                                                      "lost: "));
  }
}

// Before the sum spreads it, in any of the step's micro-batches.
TEST(FullyShard, NamesTheRankWhoseGradientWasNotFinite) {
  for (ShardOptions options : {Zero1(), Zero3()}) {
    for (const bool bad : {true, false}) {
      RunInProcess(2, [&](ProcessGroup& group) {
        options.micro_batches = 4;
        ToyModel model;
        FullyShard sharded(&group, model, options);
        const std::string where = bad ? "rank 1 ('in.weight')" : "";
        for (int step = 0; step < 2; ++step) {
          for (int micro = 0; micro < 2; ++micro) {
            const ToyBatch batch = MakeToyBatch(group.rank());
            if (bad && step == 0 && micro == 0 && group.rank() == 1) batch.x.Fill(INFINITY);
            ToyBackward(model, batch, 16);
          }
          EXPECT_EQ(sharded.LocateNonFinite(), step == 0 ? where : "");
          model.ZeroGrad();
        }
        EXPECT_EQ(sharded.LocateNonFinite(/*ago=*/1), where);
      });
    }
  }
}

TEST(FullyShard, AParameterWithoutAGradientIsNamed) {
  std::latch all_have_the_loss(2);
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    FullyShard sharded(&group, model);
    model.use_extra = false;
    const Tensor loss = LossOf(model);
    all_have_the_loss.arrive_and_wait();
    EXPECT_THAT(
        lockstep::test::MessageOf([&] { Backward(loss, Tensor::Full({}, 0.5, DType::kF32)); }),
        AllOf(HasSubstr("'extra.weight"), HasSubstr("took no part in this loss")));
  });
}

}  // namespace
}  // namespace lockstep::dist
