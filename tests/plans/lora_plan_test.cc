// Low-rank adapters in every parallel mode: whatever ranks share out a run, losses, norms, weights
// and optimizer state are those of one process; frozen weights have neither gradients nor state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "dist/groups/in_process_group.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"

namespace lockstep::models {
namespace {

using enum dist::PipelineKind;

Task Gpt2(DType dtype) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .dtype = dtype, .steps = 4};
  task.model.vocab_size = 32;
  task.model.n_head = 4;
  task.model.n_embd = 32;
  task.model.bias = true;
  task.optim.clip = 0.002;
  task.virtual_tp = 2;
  task.virtual_cp = 2;
  task.lora = {.rank = 3, .dropout = 0.2};
  return task;
}

Task Llama(DType dtype) {
  Task task = LlamaLike(Gpt2(dtype));
  task.model.tie_embeddings = false;
  task.model.n_kv_head = 2;
  task.model.n_inner = 48;
  return task;
}

void ExpectSameBitsOfAll(const std::vector<Plan>& plans) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectSameBits(Gpt2(dtype), plans);
    ExpectSameBits(Llama(dtype), plans);
  }
}

Plan DataParallel(int64_t copies) { return {.copies = copies, .data_parallel = true}; }

TEST(LoraPlan, TensorParallel) {
  std::vector<Plan> plans;
  for (const auto& [tp, dp] : {std::pair<int64_t, int64_t>{2, 1}, {1, 2}, {2, 2}}) {
    plans.push_back({.copies = dp, .tp = tp, .data_parallel = true});
  }
  ExpectSameBitsOfAll(plans);
}

// Ranks have parts of key heads, whose adapters are cut all the same.
TEST(LoraPlan, FewerKeyHeadsThanRanks) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t keys : {1, 2}) {
      Task task = Llama(dtype);
      task.virtual_tp = 4;
      task.virtual_cp = 1;
      task.model.n_kv_head = keys;
      ExpectSameBits(task, {{.tp = 2, .data_parallel = true}, {.tp = 4, .data_parallel = true}});
    }
  }
}

}  // namespace
}  // namespace lockstep::models
