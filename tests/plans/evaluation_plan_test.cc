// Scores of texts under any plan: those of one process, to the bit, in no more memory than steps
// take.
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "dist/groups/agreement.h"
#include "models/evaluate/score.h"
#include "models/train/run_tasks.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

using enum dist::PipelineKind;

Task Gpt2(DType dtype) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .dtype = dtype, .steps = 1};
  task.model.n_layer = 4;
  task.virtual_tp = 2;
  return task;
}

Task Llama(DType dtype) {
  Task task = LlamaLike(Gpt2(dtype));
  task.model.tie_embeddings = false;
  return task;
}

// Of all lengths that fit the context, in several batches; some differ in their last token only.
std::vector<ScoreRequest> Requests() {
  std::vector<ScoreRequest> requests;
  for (int32_t i = 0; i < 14; ++i) {
    ScoreRequest request{.ids = {}, .scored = 1 + i % 3, .wants_greedy = i % 2 == 0};
    const auto length = static_cast<int32_t>(request.scored + 1 + i % (kWindow - 2));
    for (int32_t t = 0; t < length; ++t) request.ids.push_back((5 * i + 3 * t * t) % 13);
    requests.push_back(request);
    request.ids.back() = (request.ids.back() + 1) % 13;
    if (i % 4 == 0) requests.push_back(request);
  }
  return requests;
}

ScoreOptions OptionsFor(PlanRun& run) {
  return {.batch_size = 3, .evaluators = EvaluatorsAmong(run.ranks())};
}

// What all ranks get.
std::vector<Score> ScoresBy(const Task& task, const Plan& plan, bool on_gpus = false) {
  std::vector<std::vector<Score>> of_ranks(static_cast<size_t>(plan.ranks()));
  const auto body = [&](dist::ProcessGroup& all) {
    PlanRun run(all, task, plan);
    run.Train(task.steps);
    of_ranks[static_cast<size_t>(all.rank())] =
        ScoreRequests(run.model(), Requests(), OptionsFor(run));
  };
  on_gpus ? dist::RunOnGpus(plan.ranks(), body) : dist::RunInProcess(plan.ranks(), body);
  for (const std::vector<Score>& scores : of_ranks) EXPECT_EQ(scores, of_ranks[0]) << plan;
  return of_ranks[0];
}

void ExpectSameScores(const Task& task, const std::vector<Plan>& plans, bool on_gpus = false) {
  const std::vector<Score> alone = ScoresBy(task, {.data_parallel = true}, on_gpus);
  EXPECT_EQ(std::ssize(alone), std::ssize(Requests()));
  for (const Plan& plan : plans) EXPECT_EQ(ScoresBy(task, plan, on_gpus), alone) << plan;
}

TEST(EvaluationPlan, PipelinesGiveTheSameBits) {
  std::vector<Plan> plans;
  for (const dist::PipelineKind kind : kPipelineKinds) {
    for (const auto& [pp, copies] : {std::pair(1, 1), {2, 1}, {2, 2}}) {
      plans.push_back({.copies = copies, .pp = pp, .schedule = kind});
    }
  }
  plans.push_back({.pp = 4, .schedule = k1F1B});
  plans.push_back({.shards = 2, .pp = 2, .schedule = k1F1B});
  plans.push_back({.tp = 2, .pp = 2, .schedule = kZeroBubbleV});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectSameScores(Gpt2(dtype), plans);
    ExpectSameScores(Llama(dtype), plans);
  }
  ExpectSameScores(ModernLike(Llama(DType::kBF16)), {{.pp = 2}, {.pp = 3}});
}

TEST(EvaluationPlan, OtherRanksGiveTheSameBits) {
  Task task = Llama(DType::kBF16);
  task.virtual_cp = 2;
  ExpectSameScores(task, {{.copies = 4, .data_parallel = true},
                          {.tp = 2, .cp = 2, .data_parallel = true},
                          {.cp = 2, .pp = 2},
                          ByShards({.shards = 2, .tp = 2}, dist::Zero3())});
}

TEST(EvaluationPlan, PipelinesOfGpusGiveTheSameBits) {
  SKIP_WITHOUT_GPUS(2);
  Task task = Gpt2(DType::kBF16);
  task.model.n_layer = 2;
  ExpectSameScores(task, {{.pp = 2}}, /*on_gpus=*/true);
}

// Batches in which so many tokens are scored that the head is called once or twice, by ranks that
// gather its weights for each call.
TEST(EvaluationPlan, ShardedHeadsAreGatheredEquallyOften) {
  Task task = Gpt2(DType::kF32);
  task.model.vocab_size = 1 << 20;  // of which 16 positions have logits at once
  task.model.n_layer = 1;
  task.model.n_embd = 8;
  task.virtual_tp = 1;
  const auto scores = [&](const Plan& plan) {
    std::vector<ScoreRequest> requests = Requests();
    for (int64_t i = 0; i < 3; ++i) {  // the first batch
      requests.push_back({.ids = std::vector<int32_t>(kWindow + 1, static_cast<int32_t>(i)),
                          .scored = kWindow,
                          .wants_greedy = true});
    }
    std::vector<Score> of_rank_0;
    dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) {
      PlanRun run(all, task, plan);
      const std::vector<Score> own = ScoreRequests(run.model(), requests, OptionsFor(run));
      if (all.rank() == 0) of_rank_0 = own;
    });
    return of_rank_0;
  };
  EXPECT_EQ(scores(ByShards({.shards = 2}, dist::Zero3())), scores({.data_parallel = true}));
}

// Of all ranks together.
TEST(EvaluationPlan, PipelinesTakeNoMoreMemoryThanSteps) {
  Task task = Llama(DType::kF32);
  task.model.vocab_size = 4096;  // whose logits are most of it
  for (const dist::PipelineKind kind : kPipelineKinds) {
    const Plan plan{.pp = 2, .schedule = kind};
    int64_t training = 0, evaluating = 0;
    dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) {
      const auto peak = [&](int64_t* to) {
        const double here[] = {0};
        dist::GatherValues(all, std::span<const double>(here));
        if (all.rank() == 0) {
          *to = GetAllocator(kCpu).stats().peak_bytes;
          GetAllocator(kCpu).ResetPeak();
        }
        dist::GatherValues(all, std::span<const double>(here));
      };
      PlanRun run(all, task, plan);
      int64_t before = 0;
      peak(&before);
      run.Train(2);
      peak(&training);
      ScoreOptions options = OptionsFor(run);
      options.batch_size = 2;  // as in training
      ScoreRequests(run.model(), Requests(), options);
      peak(&evaluating);
    });
    EXPECT_LE(evaluating, training) << plan;
    EXPECT_GT(evaluating, 0);
  }
}

}  // namespace
}  // namespace lockstep::models
