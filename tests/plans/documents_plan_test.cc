// Documents that share windows, under any plan: losses, norms, weights and optimizer state of
// ordered runs are those of one process.
#include <gtest/gtest.h>

#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

using enum dist::PipelineKind;

Task Gpt2() {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .dtype = DType::kF32, .micro_batches = 4};
  task.model.vocab_size = 14;
  task.model.n_layer = 2;
  task.model.n_head = 4;
  task.model.n_embd = 32;
  task.model.bias = true;
  task.optim.clip = 0.05;  // below the norms
  task.virtual_tp = 2;
  task.virtual_cp = 2;
  task.document_mask = true;
  task.steps = 3;
  return task;
}

std::vector<Plan> Plans() {
  std::vector<Plan> plans = {
      {.copies = 2, .data_parallel = true},
      ByShards({.shards = 4}, dist::Zero3()),
      {.tp = 2, .data_parallel = true},
      {.cp = 2, .data_parallel = true},
      {.tp = 2, .cp = 2, .pp = 2, .schedule = kZeroBubbleV},
      {.copies = 2, .pp = 2, .schedule = kZeroBubbleH1},
      ByShards({.shards = 2, .cp = 2, .pp = 2, .schedule = kInterleaved}, dist::Zero2()),
      ByShards({.shards = 2, .tp = 2}, dist::Zero1())};
  const size_t count = plans.size();
  for (size_t i = 0; i < count; ++i) {
    if (i % 2 == 0) plans[i].recompute = ParseRecompute("block");
    if (i % 4 == 1) plans[i].recompute = ParseRecompute("attention");
  }
  return plans;
}

TEST(DocumentsPlan, LearnedPositions) { ExpectSameBits(Gpt2(), Plans()); }

TEST(DocumentsPlan, RotaryPositionsInBF16) {
  Task task = LlamaLike(Gpt2());
  task.model.n_kv_head = 2;
  task.dtype = DType::kBF16;
  ExpectSameBits(task, Plans());
}

// Else the plans above would agree on nothing.
TEST(DocumentsPlan, MasksChangeTheRun) {
  Task task = Gpt2(), without = Gpt2();
  without.document_mask = false;
  const Outcome masked = TrainAlone(task), plain = TrainAlone(without);
  EXPECT_EQ(Difference(masked, plain), "the loss of step 0");
  EXPECT_NE(masked.val_loss, plain.val_loss);
}

TEST(DocumentsPlan, OnGpus) {
  Task task = Gpt2();
  task.steps = 2;
  Plan recomputed = {.cp = 2, .data_parallel = true};
  recomputed.recompute = ParseRecompute("block");
  ExpectSameBits(task, {{.tp = 2, .data_parallel = true}, recomputed}, /*on_gpus=*/true);
}

}  // namespace
}  // namespace lockstep::models
