// Steps of the toy model through a Reducer, and their expected gradients.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "dist/data_parallel/reducer.h"
#include "dist/groups/agreement.h"
#include "tests/dist/toy_model.h"

namespace lockstep::dist {

constexpr int64_t kRows = 4;  // of a micro-batch

// Small, so that the toy model has several buckets.
inline ReducerOptions Small(ReducerOptions options = {}) {
  options.first_bucket_bytes = 256;
  options.bucket_bytes = 1024;
  return options;
}

// The gradients of a step over `leaves` micro-batches; checks that all
// ranks have the same bits. run(ranks, body) calls body(group) on each rank.
template <class Run>
std::vector<float> StepGradients(const Run& run, int ranks, int64_t leaves,
                                 ReducerOptions options) {
  options.micro_batches = leaves;
  std::vector<std::vector<float>> of_rank(ranks);
  run(ranks, [&](ProcessGroup& group) {
    ToyModel model(1, 16, group.device());
    Reducer reducer(&group, model.Parameters(), options);
    for (int step = 0; step < 2; ++step) {  // the second finds used buckets
      model.ZeroGrad();
      for (const int64_t m : reducer.micro_order()) {
        std::optional<Reducer::NoSync> no_sync;
        if (m != reducer.micro_order().back()) no_sync.emplace(reducer);
        ToyBackward(model, MakeToyBatch(m, kRows), static_cast<double>(leaves * kRows));
      }
    }
    EXPECT_TRUE(ranks == 1 || reducer.times().communication_ms > 0);
    of_rank[group.rank()] = GradientsOf(model);
  });
  for (const auto& g : of_rank) EXPECT_EQ(g, of_rank[0]) << "ranks differ";
  return of_rank[0];
}

// The gradients of one process on the CPU with all micro-batches as one.
inline std::vector<float> WholeBatchGradients(int64_t leaves) {
  ToyModel model;
  ToyBackward(model, MakeToyBatch(0, leaves * kRows), static_cast<double>(leaves * kRows));
  return GradientsOf(model);
}

// Rank r has data for r + 1 steps and then joins the others: each step has the gradients of the
// ranks that had data. Called on all ranks.
inline void CheckRanksWithoutDataJoin(ProcessGroup& group, const ReducerOptions& options,
                                      double tolerance) {
  ToyModel model(1, 16, group.device());
  ToyModel alone;
  Reducer reducer(&group, model.Parameters(), options);
  for (int step = 0; step < group.size(); ++step) {
    model.ZeroGrad();
    alone.ZeroGrad();
    if (step <= group.rank()) {
      ToyBackward(model, MakeToyBatch(group.rank()), 1);
    } else {
      reducer.Join();
    }
    CheckGradients(group, model);
    for (int r = step; r < group.size(); ++r) ToyBackward(alone, MakeToyBatch(r), 1);
    EXPECT_LT(MaxDifference(GradientsOf(model), GradientsOf(alone)), tolerance) << step;
  }
}

}  // namespace lockstep::dist
