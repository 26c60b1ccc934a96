// Trains the toy model for some steps through DataParallel, and checks the results.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "dist/data_parallel/data_parallel.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "tests/dist/toy_steps.h"

namespace lockstep::dist {

// Weights after some updates, and the last gradient norm.
struct ToyOutcome {
  std::vector<float> weights;
  float grad_norm = 0;
  bool operator==(const ToyOutcome&) const = default;
};

// `steps` updates over `leaves` micro-batches each. A null group: one process, on the CPU.
inline ToyOutcome TrainToy(ProcessGroup* group, int64_t leaves, ReducerOptions options,
                           int64_t steps, int64_t check_every = 0) {
  const Device device = group ? group->device() : kCpu;
  ToyModel model(/*seed=*/group ? 1 + group->rank() : 1, 16, device);  // rank 0's weights hold
  options.micro_batches = leaves;
  options.first_bucket_bytes = 512;
  options.bucket_bytes = 2048;
  DataParallel parallel(group, model, options);
  optim::AdamW adamw(model.Parameters(), {.weight_decay = 0.1});
  StepState state(device, 1);
  for (int64_t step = 0; step < steps; ++step) {
    const auto training = adamw.BeginStep(state, step, 1e-2);
    for (const int64_t m : parallel.reducer().micro_order()) {
      std::optional<Reducer::NoSync> no_sync;
      if (m != parallel.reducer().micro_order().back()) no_sync.emplace(parallel.reducer());
      ToyBackward(model, MakeToyBatch(step * leaves + m, kRows),
                  static_cast<double>(leaves * kRows));
    }
    optim::ClipGradNorm(model.Parameters(), 0.05, state);
    adamw.Step(state);
    adamw.ZeroGrad();
    if (check_every > 0 && step % check_every == 0)
      parallel.CheckWeights(StrCat("after step ", step + 1));
  }
  return {WeightsOf(model), state.Read().grad_norm};
}

// The same on ranks, which must all get the same result. run(ranks, body) calls body(group) on
// each.
template <class Run>
ToyOutcome TrainToyOn(const Run& run, int ranks, int64_t leaves, const ReducerOptions& options,
                      int64_t steps) {
  std::vector<ToyOutcome> outcomes(ranks);
  run(ranks, [&](ProcessGroup& group) {
    outcomes[group.rank()] = TrainToy(&group, leaves, options, steps, /*check_every=*/10);
  });
  for (const ToyOutcome& o : outcomes) EXPECT_EQ(o, outcomes[0]);
  return outcomes[0];
}

// Three steps of two micro-batches each. Rank 1 leaves in the second one: before its backwards (0),
// between them (1) or after them (2).
inline void TrainUntilRank1Leaves(ProcessGroup& group, int leaves_at) {
  const auto leaves = [&](int step, int at) {
    return group.rank() == 1 && step == 1 && at == leaves_at;
  };
  ToyModel model(1, 16, group.device());
  DataParallel parallel(&group, model, Small());
  for (int step = 0; step < 3; ++step) {
    model.ZeroGrad();
    if (leaves(step, 0)) return;
    {
      const Reducer::NoSync no_sync(parallel.reducer());
      ToyBackward(model, MakeToyBatch(group.rank()), 1);
    }
    if (leaves(step, 1)) return;
    ToyBackward(model, MakeToyBatch(group.rank()), 1);
    if (leaves(step, 2)) return;
    parallel.Sum(1.0);
  }
}

}  // namespace lockstep::dist
