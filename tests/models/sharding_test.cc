// Training with weights, gradients and optimizer state shared out among ranks, which are threads
// here. The law: with the ordered sum nothing changes a bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "core/io/file.h"
#include "dist/control/flight_recorder.h"
#include "dist/data_parallel/data_parallel.h"
#include "dist/groups/in_process_group.h"
#include "dist/mesh.h"
#include "dist/shard/fully_shard.h"
#include "models/options/config.h"
#include "models/train/run_setup.h"
#include "models/train/trainer.h"
#include "tests/message_of.h"
#include "tests/models/training.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using testing::HasSubstr;

// What is trained.
struct Task {
  GptConfig model;
  DType dtype = DType::kF32;
  OptimOptions optim;
  int64_t micro_batches = 4;  // of a step, on all ranks
  int steps = 5;
};

// On what.
struct Plan {
  int64_t shards = 1, copies = 1;
  dist::ShardOptions options = {};
  bool in_memory = false;  // before it is sharded
};

std::ostream& operator<<(std::ostream& out, const Plan& p) {
  return out << p.shards << " shards of " << p.copies << " copies, reshard "
             << static_cast<int>(p.options.reshard) << ", accumulate "
             << static_cast<int>(p.options.accumulate) << (p.in_memory ? ", in memory" : "");
}

std::ostream& operator<<(std::ostream& out, const Task& t) {
  const GptConfig& m = t.model;
  return out << m.n_layer << " layers of width " << m.n_embd << ", vocabulary " << m.vocab_size
             << (m.tie_embeddings ? ", tied" : "") << (m.bias ? ", biases" : "") << ", "
             << Name(m.norm) << ", " << Name(m.activation) << ", " << Name(m.position)
             << ", dropout " << m.dropout << ", " << t.dtype << ", " << t.optim.name << ", clip "
             << t.optim.clip << ", " << t.micro_batches << " micro-batches";
}

// The groups of a rank.
struct RankGroups {
  std::shared_ptr<dist::ProcessGroup> shard, replicate;
};

RankGroups Split(dist::ProcessGroup& all, int64_t shards) {
  const dist::Mesh mesh({.shard = static_cast<int>(shards)}, all.rank(), all.size());
  const auto group = [&](const char* axis) {
    return all.Split(mesh.GroupName({axis}), mesh.RanksAlong({axis}));
  };
  return {.shard = group("shard"), .replicate = group("replicate")};
}

// Everything that training computes.
struct Outcome {
  std::vector<double> losses, norms;
  double val_loss = 0;
  std::map<std::string, std::vector<double>> weights, state;
  bool operator==(const Outcome&) const = default;
};

std::vector<double> Values(const Tensor& t) {
  return t.Detach().To(DType::kF64).ToVector<double>();
}

// `wholes`: with weights and state, which are gathered.
Outcome TrainWith(Gpt& model, dist::DataRanks& parallel, const Task& task, bool wholes = true) {
  const auto optimizer = MakeOptimizer(task.optim, model);
  const auto tokens = Tokens(400);
  data::Loader loader(tokens, Shuffled(*tokens),
                      {.batch_size = 2,
                       .micro_batches = task.micro_batches,
                       .micro_order = parallel.micro_order()});
  Trainer trainer(model, *optimizer, SmallSchedule(), loader,
                  {.micro_batches = task.micro_batches,
                   .clip = task.optim.clip,
                   .seed = 9,
                   .parallel = &parallel,
                   .check_every = 2});
  Outcome outcome;
  for (int i = 0; i < task.steps; ++i) {
    if (i == task.steps / 2) {
      outcome.val_loss = trainer.Evaluate(data::EvalBatches(tokens, kWindow, 3, 2));
    }
    const StepMetrics m = trainer.Step();
    outcome.losses.push_back(m.loss);
    outcome.norms.push_back(m.grad_norm);
  }
  if (!wholes) return outcome;
  for (const auto& [name, p] : model.NamedParameters()) {
    outcome.weights[name] = Values(p->WholeOf(p->value().Detach()));
  }
  optimizer->ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
    outcome.state[name] = Values(p.WholeOf(part));
  });
  return outcome;
}

void Materialize(Gpt& model, const Task& task, uint64_t seed = 4) {
  model.Materialize(kCpu, seed, task.dtype);
  for (const auto& p : model.Parameters()) p->leaf().SetDType(DType::kF32);
}

Outcome TrainAlone(const Task& task) {
  Gpt model(task.model);
  Materialize(model, task);
  dist::DataParallel parallel(
      nullptr, model, {.sum = dist::GradientSum::kOrdered, .micro_batches = task.micro_batches});
  return TrainWith(model, parallel, task);
}

Outcome TrainSharded(const Task& task, const Plan& plan) {
  std::vector<Outcome> outcomes(plan.shards * plan.copies);
  dist::RunInProcess(static_cast<int>(outcomes.size()), [&](dist::ProcessGroup& all) {
    const RankGroups groups = Split(all, plan.shards);
    Gpt model(task.model);
    // All begin with rank 0's weights.
    if (plan.in_memory) Materialize(model, task, all.rank() == 0 ? 4 : 5);
    dist::ShardOptions options = plan.options;
    options.sum = dist::GradientSum::kOrdered;
    options.micro_batches = task.micro_batches;
    dist::FullyShard sharded(
        plan.copies > 1 ? dist::ShardGroups(&all, groups.shard.get(), groups.replicate.get())
                        : dist::ShardGroups(&all),
        model, options);
    if (!plan.in_memory) Materialize(model, task);
    outcomes[all.rank()] = TrainWith(model, sharded, task);
  });
  for (const Outcome& other : outcomes) EXPECT_EQ(other, outcomes[0]);
  return outcomes[0];
}

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  template <class T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

 private:
  std::mt19937 random_;
};

Task DrawTask(Draw& draw) {
  Task task;
  GptConfig& m = task.model;
  m = SmallGpt(draw.Of({0.0, 0.1}));
  m.vocab_size = draw.Of<int64_t>({13, 29, 259});
  m.n_layer = draw.Of<int64_t>({1, 2, 3});
  // The largest have matrices of several chunks of the norm, which are cut.
  m.n_embd = draw.Of<int64_t>({8, 24, 36, 76, 76});
  m.tie_embeddings = draw.Of({true, false});
  m.bias = draw.Of({true, false});
  if (draw.Of({true, false})) {  // Llama
    m.bias = false;
    m.norm = NormKind::kRmsNorm;
    m.activation = nn::MlpActivation::kSwiGlu;
    m.position = Position::kRope;
    m.n_kv_head = draw.Of<int64_t>({1, 2});
    m.n_inner = draw.Of<int64_t>({40, 50, 300});
  }
  task.dtype = draw.Of({DType::kF32, DType::kF32, DType::kBF16});
  task.optim.name = draw.Of<std::string>({"adamw", "adamw", "lion", "sgd", "muon"});
  task.optim.clip = draw.Of({0.0, 0.5, 0.05});
  return task;
}

Plan DrawPlan(Draw& draw, Task& task) {
  Plan plan;
  const auto [shards, copies] = draw.Of<std::pair<int64_t, int64_t>>(
      {{1, 1}, {2, 1}, {2, 1}, {4, 1}, {4, 1}, {2, 2}, {1, 2}});
  plan.shards = shards;
  plan.copies = copies;
  plan.options.reshard = draw.Of({dist::Reshard::kAfterForward, dist::Reshard::kAfterForward,
                                  dist::Reshard::kAfterBackward, dist::Reshard::kAfterStep});
  plan.options.accumulate = draw.Of({dist::Accumulate::kShards, dist::Accumulate::kWhole});
  plan.in_memory = draw.Of({true, false});
  task.micro_batches = shards * copies * draw.Of<int64_t>({1, 2, 4});
  return plan;
}

// By hand: SHARDING_ROUNDS=2000 bazel-bin/tests/models/sharding_test --gtest_filter=*Bits*
TEST(Sharding, NeverChangesTheBitsOfOrderedRuns) {
  int rounds = test::kSanitized ? 4 : 24;
  if (const char* text = std::getenv("SHARDING_ROUNDS")) rounds = std::atoi(text);
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    Draw draw(static_cast<uint32_t>(round));
    Task task = DrawTask(draw);
    const Plan plan = DrawPlan(draw, task);
    EXPECT_TRUE(TrainSharded(task, plan) == TrainAlone(task))
        << "round " << round << ": " << task << "; " << plan;
  }
}

// The calls that two ranks made in a step of two micro-batches each, with their sizes in elements:
// for the units' weights, and for their gradients.
std::pair<std::vector<int64_t>, std::vector<int64_t>> CallsOfAStep(const Task& task,
                                                                   dist::ShardOptions options) {
  constexpr int kRanks = 2;
  const std::string folder = JoinPath(testing::TempDir(), "flight");
  RemoveTree(folder);
  const auto recorder = std::make_shared<dist::FlightRecorder>(folder, 0, kRanks);
  dist::RunInProcess(kRanks,
                     [&](dist::ProcessGroup& group) {
                       Gpt model(task.model);
                       options.micro_batches = 2 * kRanks;
                       dist::FullyShard sharded(&group, model, options);
                       Materialize(model, task);
                       TrainWith(model, sharded, task, /*wholes=*/false);
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
