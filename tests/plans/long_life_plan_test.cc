// Some hundred steps under plans of model parallelism: tensors, threads and file descriptors must
// be the same at the end as after the first steps, and the heap must stop growing. So must whatever
// waits in queues (posted receives, deferred gradients, messages not yet asked for), since it takes
// memory. Ranks compute without a pool of threads here. Longer runs, of control traffic and of
// data-parallel processes: tests/dist/long_life_test.cc and tests/train_gpt_long_life_test.cc.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <thread>
#include <vector>

#include "core/allocator.h"
#include "core/thread_pool.h"
#include "tests/dist/in_process.h"
#include "tests/models/training.h"
#include "tests/plans/plan_run.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

// A thread keeps the kernels of the last 128 sizes that it multiplied, and the largest panels. By
// the early steps it has met almost all sizes, which experts' loads vary. What grows later now and
// then spares a window; a leak spares none.
constexpr int kEarly = test::kSanitized ? 10 : 250, kWindow = test::kSanitized ? 10 : 200;
constexpr int kWindows = 2;

struct Sample {
  int64_t tensor_bytes = 0, heap_bytes = 0;
  test::ProcessState process;
};

// What all ranks hold between steps.
Sample Take(dist::ProcessGroup& all) {
  all.Barrier()->Synchronize();
  Sample sample;
  if (all.rank() == 0) {
    malloc_trim(0);
    const auto heap = mallinfo2();
    sample = {.tensor_bytes = GetAllocator(kCpu).stats().live_bytes,
              .heap_bytes = static_cast<int64_t>(heap.uordblks + heap.hblkhd),
              .process = test::ProcessStateOf()};
  }
  all.Barrier()->Synchronize();
  return sample;
}

void ExpectNothingGrows(Task task, const Plan& plan) {
  // In a pool, chance decides which thread meets which size, on a busy machine for a long time.
  SetNumThreads(1);
  task.steps = 2;  // the validation is among the first steps
  std::vector<Sample> samples;
  int64_t after = 0;
  dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) {
    PlanRun run(all, task, plan);
    std::vector<Sample> taken;
    for (int window = 0; window <= kWindows; ++window) {
      run.Train(window == 0 ? kEarly : kWindow);
      taken.push_back(Take(all));
    }
    // Evaluations have panels of their own, but keep no tensors.
    run.Evaluate();
    run.Train(1);
    const int64_t evaluated = Take(all).tensor_bytes;
    if (all.rank() == 0) samples = taken, after = evaluated;
  });
  const Sample &early = samples.front(), &late = samples.back();
  // Each rank notes the loss, the norm and two loads of each step.
  const int64_t notes = plan.ranks() * 4 * kWindow * int64_t{sizeof(double)};
  int64_t least_growth = std::numeric_limits<int64_t>::max();
  for (int i = 1; i <= kWindows; ++i) {
    const int64_t growth = samples[i].heap_bytes - samples[i - 1].heap_bytes - notes;
    std::printf("%d steps: tensors grow by %ld bytes, the heap by %ld beside %ld of notes\n",
                kWindow, samples[i].tensor_bytes - samples[i - 1].tensor_bytes, growth, notes);
    least_growth = std::min(least_growth, growth);
  }
  // A batch may have been read ahead.
  EXPECT_LE(late.tensor_bytes, early.tensor_bytes + 2048);
  EXPECT_LE(after, early.tensor_bytes + 2048);
  EXPECT_LE(late.process.threads, early.process.threads);
  EXPECT_LE(late.process.descriptors, early.process.descriptors);
  if (test::kSanitized) return;  // sanitizers keep freed memory for a while
  // What each step keeps is more in all. (BUILD turns off what threads keep of freed memory.)
  EXPECT_LE(least_growth, 4 << 10);
}

TEST(LongLife, OfAPipeline) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .micro_batches = 4};
  task.model.n_layer = 4;
  task.model.tie_embeddings = false;
  ExpectNothingGrows(task, {.pp = 2, .schedule = dist::PipelineKind::kZeroBubbleV});
}

TEST(LongLife, OfTensorParallelism) {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .micro_batches = 2, .virtual_tp = 2};
  task.model.vocab_size = 14;
  ExpectNothingGrows(task, {.tp = 2, .data_parallel = true});
}

Task Mixture() {
  Task task{.model = SmallGpt(/*dropout=*/0.1), .micro_batches = 2};
  task.model.mixture = {.n_expert = 4, .n_expert_used = 2, .n_inner = 12};
  task.model.mixture.router.score = RouterScore::kSigmoid;
  task.model.mixture.bias_rate = 0.05;
  return task;
}

TEST(LongLife, OfContextParallelismWithSharedOutExperts) {
  Task task = Mixture();
  task.virtual_cp = 2;
  ExpectNothingGrows(task, {.cp = 2, .ep = 2, .data_parallel = true});
}

TEST(LongLife, OfAMixtureInLayersAndSequencesOfSeveralRanks) {
  Task task = Mixture();
  task.model.vocab_size = 14;
  task.virtual_tp = 2;
  task.virtual_cp = 2;
  ExpectNothingGrows(task, {.tp = 2, .cp = 2, .data_parallel = true});
}

TEST(LongLife, OfSharedOutExpertsInShards) {
  ExpectNothingGrows(Mixture(), {.shards = 2, .ep = 2, .options = dist::Zero3()});
}

TEST(LongLife, OfSharedOutExpertsInAPipeline) {
  Task task = Mixture();
  task.micro_batches = 4;
  ExpectNothingGrows(task, {.copies = 2, .ep = 2, .pp = 2, .schedule = dist::PipelineKind::k1F1B});
}

}  // namespace
}  // namespace lockstep::models
