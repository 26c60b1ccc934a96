// What sharded training communicates. That it changes no bit is a law of any_plan_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/io/file.h"
#include "dist/control/flight_recorder.h"
#include "dist/groups/in_process_group.h"
#include "dist/shard/flat_layout.h"
#include "dist/shard/fully_shard.h"
#include "optim/adamw.h"
#include "tests/message_of.h"
#include "tests/models/plan_run.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

// The calls that two ranks made in a step of two micro-batches each, with their sizes in elements:
// for the units' weights, and for their gradients.
std::pair<std::vector<int64_t>, std::vector<int64_t>> CallsOfAStep(
    const Task& task, const dist::ShardOptions& options) {
  constexpr int kRanks = 2;
  const std::string folder = JoinPath(testing::TempDir(), "flight");
  RemoveTree(folder);
  const auto recorder = std::make_shared<dist::FlightRecorder>(folder, 0, kRanks);
  dist::RunInProcess(
      kRanks,
      [&](dist::ProcessGroup& group) {
        PlanRun(group, task, {.shards = kRanks, .options = options}).Train(task.steps);
      },
      {.recorder = recorder});
  recorder->Write("");
  const std::string file = JoinPath(folder, dist::FlightFileName(0));
  const auto record = dist::ParseFlightRecord(ReadFile(file), file);
  std::vector<int64_t> gathers, sums;  // of both ranks
  for (const auto& [name, group] : record.groups) {
    for (const dist::FlightCall& call : group.calls) {
      if (call.purpose.starts_with("the weights of")) gathers.push_back(call.call.count);
      if (call.purpose.starts_with("the gradients of")) sums.push_back(call.call.count);
    }
  }
  for (auto* counts : {&gathers, &sums}) std::ranges::sort(*counts);
  return {gathers, sums};
}

// By the formulas of ZeRO: units are gathered once or twice per micro-batch, or once a step, and
// their gradients are scattered after each or once.
TEST(Sharding, CommunicatesAsOftenAndAsMuchAsItMust) {
  Task task;
  task.model = SmallGpt(0);
  task.model.n_embd = 76;
  task.model.tie_embeddings = false;
  task.micro_batches = 4;
  task.steps = 1;
  Gpt model(task.model);
  std::vector<int64_t> shards;  // of the units, in the order of the forward
  const auto add_unit = [&](const Module& module) {
    std::vector<int64_t> numels;
    for (const auto& p : module.Parameters()) numels.push_back(p->logical_shape().numel());
    shards.push_back(dist::PlanFlat(numels, 2, 1).shard);
  };
  add_unit(*model.embedding());
  for (int64_t i = 0; i < model.blocks().size(); ++i) add_unit(*model.blocks()[i]);
  add_unit(*model.head());
  // `times` of each unit, `of_last` of the head, on both ranks.
  const auto calls = [&](int times, int of_last) {
    std::vector<int64_t> counts;
    for (size_t u = 0; u < shards.size(); ++u) {
      const int n = 2 * (u + 1 == shards.size() ? of_last : times);
      counts.insert(counts.end(), static_cast<size_t>(n), shards[u]);
    }
    std::ranges::sort(counts);
    return counts;
  };
  using dist::Accumulate, dist::Reshard;
  for (const auto sum : {dist::GradientSum::kFast, dist::GradientSum::kOrdered}) {
    const auto of = [&](Reshard reshard, Accumulate accumulate) {
      return CallsOfAStep(task, {.reshard = reshard, .accumulate = accumulate, .sum = sum});
    };
    // The head is not released before its backward. TrainWith evaluates once before the step.
    const int evaluation = 1;
    EXPECT_EQ(of(Reshard::kAfterForward, Accumulate::kShards),
              std::pair(calls(4 + evaluation, 2 + evaluation), calls(2, 2)));
    EXPECT_EQ(of(Reshard::kAfterBackward, Accumulate::kShards),
              std::pair(calls(2 + evaluation, 2 + evaluation), calls(2, 2)));
    EXPECT_EQ(of(Reshard::kAfterStep, Accumulate::kShards), std::pair(calls(1, 1), calls(2, 2)));
    EXPECT_EQ(of(Reshard::kAfterStep, Accumulate::kWhole), std::pair(calls(1, 1), calls(1, 1)));
  }
}

// Ids and targets of two windows.
std::pair<Tensor, Tensor> TwoWindows() {
  std::vector<int32_t> ids, targets;
  for (int32_t i = 0; i < 2 * kWindow; ++i) {
    ids.push_back(i % 13);
    targets.push_back((i + 1) % 13);
  }
  return {Tensor::FromVector<int32_t>(ids, {2, kWindow}),
          Tensor::FromVector<int32_t>(targets, {2, kWindow})};
}

TEST(Sharding, ForwardsWithinWholeLeaveItWhole) {
  dist::RunInProcess(2, [](dist::ProcessGroup& group) {
    Gpt model(SmallGpt(0));
    dist::FullyShard sharded(&group, model);
    model.Materialize(kCpu, 4);
    const auto loss = [&] {
      const NoGrad no_grad;
      const auto [ids, targets] = TwoWindows();
      return model.Loss(ids, targets).Item();
    };
    const double before = loss();
    {
      const dist::FullyShard::Whole whole(sharded);
      EXPECT_EQ(loss(), before);
      for (const auto& p : model.Parameters()) {
        EXPECT_EQ(p->value().shape(), p->logical_shape()) << p->name();
        p->value().Detach().Fill(0);
      }
    }
    EXPECT_NEAR(loss(), 2 * kWindow * std::log(13.0), 1e-3) << "what was written is kept";
  });
}

TEST(Sharding, AForgottenLossScaleThrows) {
  dist::RunInProcess(2, [](dist::ProcessGroup& group) {
    Gpt model(SmallGpt(0));
    dist::FullyShard sharded(&group, model);
    model.Materialize(kCpu, 4);
    optim::AdamW adamw(model.Parameters());
    StepState state(kCpu, /*seed=*/1);
    state.EnableLossScaling();
    const auto training = adamw.BeginStep(state, 0, 1e-3, {.first_sample = 2 * group.rank()});
    const auto [ids, targets] = TwoWindows();
    const Tensor loss = model.Loss(ids, targets);
    EXPECT_THAT(test::MessageOf([&] { Backward(loss, Tensor::Full({}, 0.5, DType::kF32)); }),
                testing::HasSubstr("Backward without the loss scale"));
  });
}

}  // namespace
}  // namespace lockstep::models
