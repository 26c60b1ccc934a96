// Tells which rank keeps the others waiting.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dist/data_parallel/data_ranks.h"
#include "dist/data_parallel/slow_ranks.h"
#include "models/report/metrics.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {

// dist::SlowRanks of a run: what each rank adds up travels with values that the ranks gather
// anyway, and the main rank decides.
class SlowRankWatch {
 public:
  // Collective. `data`: this rank's, by whose sums it and others are compared. `ranks` outlives it.
  SlowRankWatch(const RunRanks& ranks, const dist::DataRanks& data);

  // On every rank: a step.
  void Add(const StepMetrics& m);
  // Runs f(), which saves a checkpoint, and returns its result.
  template <class F>
  void TimeCheckpoint(const F& f) {
    const int64_t start = OwnTime();
    f();
    times_.checkpoint += OwnTime() - start;
  }

  // What this rank has added since the last call.
  static constexpr size_t kValues = 4;
  std::array<int64_t, kValues> Take();
  // On the main rank, after each Take: rank r's are the last values of of_ranks[r]. Warns of ranks
  // that begin to be late, or no longer are.
  void Judge(std::span<const std::vector<int64_t>> of_ranks);
  // On the main rank: gives the metrics what Judge has found since the last call.
  void Note(StepMetrics* m);

 private:
  // Of this thread, in microseconds: without what others blocked it.
  static int64_t OwnTime();
  std::string NameOf(int64_t rank) const;
  void Tell(const dist::SlowRanks::Verdict& verdict) const;

  const RunRanks& ranks_;
  dist::RankTimes times_;
  int64_t steps_ = 0;
  double ms_ = 0;
  // On the main rank, if there are several.
  std::vector<std::string> hosts_;
  std::optional<dist::SlowRanks> slow_;
  std::optional<dist::SlowRanks::Verdict> verdict_;
};

}  // namespace lockstep::models
