// Pipelines: whatever ranks have the stages, and in whatever order they work, losses, norms,
// weights and optimizer state of ordered runs are those of one process. Embedding and head are
// tied, in stages of one rank or of two, unless a test says otherwise.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "dist/data_parallel/training_file.h"
#include "models/gpt/generate.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/message_of.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

using enum dist::PipelineKind;
using testing::HasSubstr;

Task Gpt2(DType dtype) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .dtype = dtype, .micro_batches = 8, .steps = 4};
  task.model.n_layer = 6;
  task.model.n_embd = 24;
  task.model.bias = true;
  // Below the norm of most steps, so that a norm of some stages would show.
  task.optim.clip = 0.05;
  return task;
}

Task Llama(DType dtype) {
  Task task = LlamaLike(Gpt2(dtype));
  task.model.n_kv_head = 1;
  task.model.tie_embeddings = false;
  return task;
}

Task Mixture(DType dtype, RouterScore score) {
  Task task = Llama(dtype);
  task.model.n_dense = 1;
  nn::MixtureOptions& mixture = task.model.mixture;
  mixture = {.n_expert = 5, .n_expert_used = 2, .n_inner = 20};
  mixture.z_loss = 0.5;
  mixture.router.score = score;
  if (score == RouterScore::kSigmoid) {
    mixture.bias_rate = 0.01;
  } else {
    mixture.balance_loss = 0.5;
    mixture.n_shared = 12;
  }
  return task;
}

std::vector<Plan> AllPlans() {
  std::vector<Plan> plans;
  for (const dist::PipelineKind kind : kPipelineKinds) {
    for (const auto& [pp, copies] : {std::pair(1, 1), {2, 1}, {3, 1}, {4, 1}, {2, 2}}) {
      plans.push_back({.copies = copies, .pp = pp, .schedule = kind});
    }
  }
  return plans;
}

TEST(PipelinePlan, SameBitsInF32) { ExpectSameBits(Gpt2(DType::kF32), AllPlans()); }

TEST(PipelinePlan, SameBitsInBF16) { ExpectSameBits(Gpt2(DType::kBF16), AllPlans()); }

TEST(PipelinePlan, SameBitsOfALlama) { ExpectSameBits(Llama(DType::kBF16), AllPlans()); }

TEST(PipelinePlan, SameBitsOfOtherNormsAndWindows) {
  ExpectSameBits(GemmaLike(Llama(DType::kBF16)), AllPlans());
  ExpectSameBits(OlmoLike(Llama(DType::kBF16)), AllPlans());
}

// Whose stages also hand on what the stream began with.
TEST(PipelinePlan, SameBitsOfModernRecipes) {
  ExpectSameBits(ModernLike(Gpt2(DType::kBF16)), AllPlans());
  std::vector<Plan> plans = {{.pp = 3, .schedule = kZeroBubbleH1},
                             {.copies = 2, .pp = 2, .schedule = kInterleaved}};
  for (Plan& plan : plans) plan.recompute = ParseRecompute("block");
  ExpectSameBits(ModernLike(Llama(DType::kF32)), plans);
}

// With tied weights, by every way to train.
TEST(PipelinePlan, SameBitsOfTiedWeightsByAnyOtherPlan) {
  std::vector<Plan> plans = {{.copies = 2, .data_parallel = true},
                             {.copies = 4, .data_parallel = true},
                             {.copies = 2, .pp = 2, .schedule = kZeroBubbleV}};
  for (const dist::Reshard reshard :
       {dist::Reshard::kAfterForward, dist::Reshard::kAfterBackward, dist::Reshard::kAfterStep}) {
    for (const auto& [shards, copies] : {std::pair(1, 1), {2, 1}, {4, 1}, {2, 2}}) {
      Plan& plan = plans.emplace_back(Plan{.shards = shards, .copies = copies});
      plan.options = {.reshard = reshard, .sum = dist::GradientSum::kOrdered};
      plan.in_memory = copies == 2;
      if (reshard == dist::Reshard::kAfterStep) plan.options.accumulate = dist::Accumulate::kWhole;
    }
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) ExpectSameBits(Gpt2(dtype), plans);
  Task task = Llama(DType::kF32);
  task.model.tie_embeddings = true;
  task.micro_batches = 6;
  ExpectSameBits(task, {{.copies = 3, .data_parallel = true}, {.copies = 2, .pp = 3}});
}

// With losses, loads and selection biases in layers of every stage.
TEST(PipelinePlan, SameBitsOfMixtures) {
  ExpectSameBits(Mixture(DType::kF32, RouterScore::kSoftmax), AllPlans());
  ExpectSameBits(Mixture(DType::kBF16, RouterScore::kSigmoid), AllPlans());
}

TEST(PipelinePlan, SameBitsOfARecomputedMixture) {
  std::vector<Plan> plans = {{.pp = 3, .schedule = k1F1B},
                             {.copies = 2, .pp = 2, .schedule = kZeroBubbleV}};
  for (Plan& plan : plans) plan.recompute = ParseRecompute("block");
  ExpectSameBits(Mixture(DType::kF32, RouterScore::kSoftmax), plans);
}

TEST(PipelinePlan, SameBitsOfAMixtureWithALossScale) {
  Task task = Mixture(DType::kF16, RouterScore::kSoftmax);
  task.steps = 12;  // of which the first are skipped
  ExpectSameBits(task, {{.pp = 3, .schedule = kZeroBubbleH1}});
}

TEST(PipelinePlan, SameBitsWithALossScale) {
  Task task = Gpt2(DType::kF16);
  task.steps = 12;  // of which the first are skipped
  ExpectSameBits(task, {{.pp = 3, .schedule = k1F1B},
                        {.copies = 2, .pp = 2, .schedule = kZeroBubbleH1},
                        {.pp = 2, .schedule = kZeroBubbleV}});
}

TEST(PipelinePlan, SameBitsWithRecomputation) {
  for (const char* what : {"block", "attention", "mlp", "layer_norm,gelu"}) {
    std::vector<Plan> plans = {{.pp = 2, .schedule = k1F1B},
                               {.pp = 3, .schedule = kZeroBubbleH1},
                               {.pp = 2, .schedule = kZeroBubbleV}};
    for (Plan& plan : plans) plan.recompute = ParseRecompute(what);
    ExpectSameBits(Gpt2(DType::kBF16), plans);
  }
}

TEST(PipelinePlan, SameBitsByOtherOptimizers) {
  for (const char* name : {"muon", "sgd", "lion"}) {
    Task task = Gpt2(DType::kBF16);
    task.optim.name = name;
    task.optim.master_weights = false;
    ExpectSameBits(task, {{.pp = 2, .schedule = kZeroBubbleH1}, {.copies = 2, .pp = 3}});
  }
}

// More stages than micro-batches. With a single one, nothing is kept apart in one process.
TEST(PipelinePlan, SameBitsWithFewMicroBatches) {
  Task task = Gpt2(DType::kF32);
  task.micro_batches = 2;
  for (const dist::PipelineKind kind : kPipelineKinds) {
    ExpectSameBits(task, {{.pp = 4, .schedule = kind}, {.copies = 2, .pp = 2, .schedule = kind}});
  }
  task.micro_batches = 1;
  ExpectSameBits(task, {{.pp = 3, .schedule = k1F1B}, {.pp = 2, .schedule = kZeroBubbleV}});
}

TEST(PipelinePlan, GoesOnByAnotherPlan) {
  const Task task = Mixture(DType::kBF16, RouterScore::kSigmoid);
  const Outcome alone = TrainAlone(task);
  Plan sharded{.shards = 2};
  sharded.options.sum = dist::GradientSum::kOrdered;
  const std::vector<Plan> plans = {{.pp = 4, .schedule = kZeroBubbleH1},
                                   {.copies = 2, .data_parallel = true},
                                   {.copies = 2, .pp = 2, .schedule = kZeroBubbleV},
                                   sharded,
                                   {.pp = 2, .schedule = kInterleaved}};
  for (size_t i = 0; i + 1 < plans.size(); ++i) {
    const Outcome half = TrainBy(task, plans[i], task.steps / 2);
    const Outcome whole = TrainBy(task, plans[i + 1], task.steps - task.steps / 2, &half);
    EXPECT_EQ(Difference(whole, alone), "") << plans[i] << ", then " << plans[i + 1];
  }
}

// As in a loop of a user's own.
TEST(PipelinePlan, SavesAndLoadsByAFileOfAnyPlan) {
  const Task task = Gpt2(DType::kF32);
  const Plan plans[] = {{.pp = 3, .schedule = kZeroBubbleH1},
                        {.copies = 2, .data_parallel = true},
                        {.copies = 2, .pp = 2, .schedule = kZeroBubbleV},
                        {.pp = 4}};
  const std::string file = JoinPath(testing::TempDir(), "of_pipelines.safetensors");
  const StepState state(kCpu, 1);
  Outcome saved = TrainBy(task, plans[0], 2);
  dist::RunInProcess(plans[0].ranks(), [&](dist::ProcessGroup& all) {
    PlanRun run(all, task, plans[0]);
    run.Train(2);
    dist::SaveTraining(file, &all, run.model(), run.optimizer(), state);
  });
  const std::string bytes = ReadFile(file);
  for (const Plan& plan : plans) {
    dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) {
      PlanRun run(all, task, plan);
      StepState own(kCpu, 1);
      dist::LoadTraining(file, run.model(), run.optimizer(), own);
      const Outcome loaded = run.Finish();
      for (const auto& [name, weight] : saved.weights) {
        EXPECT_EQ(loaded.weights.at(name).ToVector<float>(), weight.ToVector<float>()) << name;
      }
      EXPECT_EQ(loaded.state.size(), saved.state.size());
      dist::SaveTraining(file + ".again", &all, run.model(), run.optimizer(), state);
    });
    EXPECT_TRUE(ReadFile(file + ".again") == bytes) << plan;
  }
}

TEST(PipelinePlan, SameBitsOnGpus) {
  SKIP_WITHOUT_GPUS(4);
  // What a simulated GPU computes in seconds.
  Task task = Gpt2(DType::kBF16);
  task.model.n_layer = 3;
  task.model.n_embd = 16;
  task.micro_batches = 4;
  task.steps = 2;
  const Outcome alone = TrainBy(task, {.data_parallel = true}, task.steps, nullptr, true);
  for (const Plan& plan :
       {Plan{.pp = 3, .schedule = k1F1B}, Plan{.pp = 2, .schedule = kInterleaved},
        Plan{.copies = 2, .pp = 2, .schedule = kZeroBubbleH1},
        Plan{.copies = 2, .pp = 2, .schedule = kZeroBubbleV}}) {
    EXPECT_EQ(Difference(TrainBy(task, plan, task.steps, nullptr, true), alone), "") << plan;
  }
}

TEST(PipelinePlan, GeneratesTheSameText) {
  const Task task = Gpt2(DType::kF32);
  const auto generate = [&](const Plan& plan, bool kv_cache) {
    std::vector<int32_t> text;
    dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) {
      PlanRun run(all, task, plan);
      const std::vector<int32_t> prompt = {1, 2, 3};
      const auto mine = Generate(run.model(), prompt, task.model.vocab_size,
                                 {.tokens = 12, .kv_cache = kv_cache});
      if (all.rank() == all.size() - 1) text = mine;
    });
    return text;
  };
  for (const bool kv_cache : {true, false}) {
    const auto alone = generate({.data_parallel = true}, kv_cache);
    EXPECT_EQ(alone.size(), 12u);
    for (const dist::PipelineKind kind : kPipelineKinds) {
      EXPECT_EQ(generate({.copies = 2, .pp = 2, .schedule = kind}, kv_cache), alone);
    }
  }
}

TEST(PipelinePlan, RefusesWhatItCannot) {
  const auto error_of = [](const Task& task, const Plan& plan) -> std::string {
    try {
      TrainBy(task, plan, 1);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  Task task = Gpt2(DType::kF32);
  EXPECT_THAT(error_of(task, {.copies = 3, .pp = 2}),
              HasSubstr("a step of 8 micro-batches gives 3 pipelines different numbers"));
  EXPECT_THAT(
      error_of(task, {.pp = 5, .schedule = kZeroBubbleV}),
      HasSubstr("a pipeline of 10 stages needs as many parts, and a model of 6 layers has 8"));
  task.micro_batches = 9;
  EXPECT_THAT(error_of(task, {.pp = 4, .schedule = kInterleaved}), HasSubstr("2 rounds"));
  // Another weight that two stages have.
  Gpt model(Gpt2(DType::kF32).model);
  model.ReplaceChild("h.5", model.blocks()[0].module());
  const ParallelPlan plan{.micro_batches = 8, .pipeline = PipelinePlan{.window = kWindow}};
  EXPECT_THAT(test::MessageOf<InputError>([&] { PipelineParallel::RanksOf(plan, 2, 1, model); }),
              HasSubstr("'h.0.ln_1.weight' is in stage 0 of the pipeline and in stage 1: only"));
}

// Which a bug would tear apart unnoticed: both are updated by the same gradient.
TEST(PipelinePlan, ComparesTheCopiesOfATiedWeight) {
  const Task task = Gpt2(DType::kF32);
  for (const bool wrong : {false, true}) {
    std::vector<std::string> errors(3);
    dist::RunInProcess(3, [&](dist::ProcessGroup& all) {
      PlanRun run(all, task, {.pp = 3});
      run.Train(1);
      Tensor weight = run.model().Parameters()[0]->value().Detach();
      if (wrong && all.rank() == 2) weight.Slice(0, 0, 1).Fill(1);
      errors[all.rank()] =
          test::MessageOf<Error>([&] { run.parallel().CheckWeights("at the end"); });
    });
    for (const int rank : {0, 2}) {
      EXPECT_THAT(errors[rank], HasSubstr(wrong ? "the tied weights at the end" : "no error"));
    }
  }
}

// No rank has memory for what is on others.
TEST(PipelinePlan, RanksHoldTheirStagesOnly) {
  const Task task = Gpt2(DType::kF32);
  std::vector<int64_t> elements(3);
  dist::RunInProcess(3, [&](dist::ProcessGroup& all) {
    PlanRun run(all, task, {.pp = 3});
    for (const auto& p : run.model().Parameters()) elements[all.rank()] += p->value().numel();
  });
  const int64_t whole = Gpt(task.model).NumParameters();
  const int64_t tied = task.model.vocab_size * task.model.n_embd;  // on the last rank, too
  EXPECT_EQ(elements[0] + elements[1] + elements[2], whole + tied);
  for (const int64_t n : elements) EXPECT_LT(n, whole / 2);
}

}  // namespace
}  // namespace lockstep::models
