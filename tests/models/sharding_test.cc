// What sharded training communicates. That it changes no bit is a law of any_plan_test.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/io/file.h"
#include "dist/control/flight_recorder.h"
#include "dist/groups/in_process_group.h"
#include "dist/shard/flat_layout.h"
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

}  // namespace
}  // namespace lockstep::models
