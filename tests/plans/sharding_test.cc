// What sharded training communicates. That it changes no bit is a law of any_plan_test.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <map>
#include <thread>

#include "core/io/file.h"
#include "core/io/json.h"
#include "dist/flight/flight_recorder.h"
#include "dist/groups/agreement.h"
#include "dist/shard/flat_exchange.h"
#include "dist/shard/fully_shard.h"
#include "models/report/trace.h"
#include "models/train/run_ranks.h"
#include "optim/adamw.h"
#include "tests/dist/in_process.h"
#include "tests/message_of.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

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
    // The head is not released before its backward. PlanRun evaluates once before the step.
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

// What a rank did and when, as its trace says: gathers by module; what modules computed, forward
// and backward, each of at least kCompute.
class Timeline {
 public:
  static constexpr auto kCompute = std::chrono::milliseconds(300);

  Timeline(dist::ProcessGroup& group, const dist::ShardOptions& options)
      : trace_(JoinPath(testing::TempDir(), StrCat("trace-", group.rank(), ".json")), {1, 1}) {
    GptConfig config = SmallGpt(0);
    config.n_layer = kLayers;
    Gpt model(config);
    trace_.BeginStep(1);
    RunConfig run;
    run.parallel.shard = "full";
    run.parallel.reshard_after_forward = options.reshard == dist::Reshard::kAfterForward;
    dist::FullyShard sharded(&group, model, ToShardOptions(run, 2, &trace_));
    model.Materialize(kCpu, 4);
    std::vector<Clock::time_point> begin(kLayers);
    for (int64_t i = 0; i < kLayers; ++i) {
      Module& block = *model.blocks()[i];
      const auto ends = [this, &begin, i](const char* what) {
        return [this, &begin, i, what](Module& m) {
          std::this_thread::sleep_for(kCompute);
          trace_.Record(StrCat(m.path(), " ", what), "compute", begin[i], Clock::now());
        };
      };
      const auto begins = [&begin, i](Module&) { begin[i] = Clock::now(); };
      block.AddPreForwardHook(begins);
      block.AddPostForwardHook(ends("forward"));
      block.AddPreBackwardHook(begins);
      block.AddPostBackwardHook(ends("backward"));
    }
    const StepState state(kCpu, /*seed=*/1);
    const TrainingScope scope(state);
    const auto [ids, targets] = TwoWindows();
    Backward(model.Loss(ids, targets), Tensor::Full({}, 0.5, DType::kF32));
    const auto json = Json::parse(trace_.ToJson());
    for (const auto& e : json["traceEvents"]) {
      if (e["ph"] != "X") continue;
      const double from = e["ts"];
      spans_.emplace(e["name"].get<std::string>(), Span{from, from + e["dur"].get<double>()});
    }
  }

  struct Span {
    double begin, end;
  };
  static constexpr int64_t kLayers = 4;

  // The n-th span whose name begins so.
  Span Of(const std::string& name, int n = 0) const {
    for (auto at = spans_.lower_bound(name); at != spans_.end(); ++at) {
      if (at->first.starts_with(name) && n-- == 0) return at->second;
    }
    ADD_FAILURE() << "the trace has too few spans " << name;
    return {};
  }

 private:
  using Clock = TraceRecorder::Clock;
  TraceRecorder trace_;
  std::multimap<std::string, Span> spans_;
};

// A block's weights arrive while the block before it computes, in forward and in backward.
TEST(Sharding, GathersOverlapWithWhatComputesMeanwhile) {
  dist::RunInProcess(2, [](dist::ProcessGroup& group) {
    const Timeline timeline(group, dist::Zero3());
    const int64_t last = Timeline::kLayers - 1;
    for (int64_t i = 0; i <= last; ++i) {
      const auto compute = timeline.Of(StrCat("h.", i, " forward"));
      const auto own = timeline.Of(StrCat("gather h.", i, " "));
      EXPECT_LE(own.end, compute.begin) << i;
      if (i == last) break;
      const auto next = timeline.Of(StrCat("gather h.", i + 1, " "));
      EXPECT_LT(next.begin, compute.end) << "the gather of block " << i + 1 << " is not prefetched";
      EXPECT_LE(next.end, compute.end) << "nothing of it is hidden";
    }
    for (int64_t i = last; i > 0; --i) {
      const auto compute = timeline.Of(StrCat("h.", i, " backward"));
      const auto next = timeline.Of(StrCat("gather h.", i - 1, " "), 1);  // for the second time
      EXPECT_LT(next.begin, compute.end) << i;
      EXPECT_LE(next.end, compute.end) << i;
      EXPECT_GE(next.begin, timeline.Of(StrCat("h.", last, " forward")).end) << i;
    }
  });
}

// The sums of a block's gradients are on their way while the block before it computes its own:
// where another rank is late, they are not waited for.
TEST(Sharding, SumsOverlapWithTheNextBackward) {
  constexpr auto kLate = std::chrono::milliseconds(500);
  dist::RunInProcess(2, [&](dist::ProcessGroup& group) {
    using Clock = dist::CommunicationSpan::Clock;
    GptConfig config = SmallGpt(0);
    config.n_layer = 3;
    config.tie_embeddings = false;
    Gpt model(config);
    std::vector<dist::CommunicationSpan> sums;
    // Without gathers in backward, for which ranks would wait.
    dist::FullyShard sharded(
        &group, model,
        {.reshard = dist::Reshard::kAfterStep,
         .micro_batches = 2,
         .on_span = [&](const dist::CommunicationSpan& span) { sums.push_back(span); }});
    model.Materialize(kCpu, 4);
    Clock::time_point next;
    model.blocks()[2]->AddPreBackwardHook([&](Module&) {
      if (group.rank() == 1) std::this_thread::sleep_for(kLate);
    });
    model.blocks()[1]->AddPreBackwardHook([&](Module&) { next = Clock::now(); });
    const StepState state(kCpu, /*seed=*/1);
    const TrainingScope scope(state);
    const auto [ids, targets] = TwoWindows();
    Backward(model.Loss(ids, targets), Tensor::Full({}, 0.5, DType::kF32));
    if (group.rank() == 1) return;
    const auto under_way = [&](const dist::CommunicationSpan& sum) {
      return sum.bucket >= 0 && sum.begin < next + kLate / 5 && sum.end > next + kLate / 5;
    };
    EXPECT_EQ(std::ranges::count_if(sums, under_way), 1);
  });
}

// What is no parameter, such as the selection biases of a router, is whole on every rank.
TEST(Sharding, ComparesBuffers) {
  std::string error;
  dist::RunInProcess(2, [&](dist::ProcessGroup& group) {
    GptConfig config = SmallGpt(0);
    config.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 12};
    config.mixture.router.score = RouterScore::kSigmoid;
    Gpt model(config);
    model.Materialize(kCpu, 4);
    dist::FullyShard sharded(&group, model);
    sharded.CheckWeights("at first");
    if (group.rank() == 1) model.NamedBuffers().at(0).second.Fill(1);
    const std::string mine =
        test::MessageOf<dist::ReplicaError>([&] { sharded.CheckWeights("later"); });
    if (group.rank() == 0) error = mine;
  });
  EXPECT_THAT(error, testing::AllOf(testing::HasSubstr("the buffers later"),
                                    testing::HasSubstr("h.0.mlp.router.bias")));
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
  std::barrier both(2);
  dist::RunInProcess(2, [&](dist::ProcessGroup& group) {
    Gpt model(SmallGpt(0));
    dist::FullyShard sharded(&group, model);
    model.Materialize(kCpu, 4);
    optim::AdamW adamw(model.Parameters());
    StepState state(kCpu, /*seed=*/1);
    state.EnableLossScaling();
    const auto training = adamw.BeginStep(state, 0, 1e-3, {.first_sample = 2 * group.rank()});
    const auto [ids, targets] = TwoWindows();
    const Tensor loss = model.Loss(ids, targets);
    both.arrive_and_wait();  // a rank that throws stops what others still gather
    EXPECT_THAT(test::MessageOf([&] { Backward(loss, Tensor::Full({}, 0.5, DType::kF32)); }),
                testing::HasSubstr("Backward without the loss scale"));
  });
}

}  // namespace
}  // namespace lockstep::models
