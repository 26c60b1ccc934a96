// A closed form of the memory plan, for searching among many thousands of layouts.
#pragma once

#include <exception>
#include <map>
#include <string>
#include <tuple>

#include "models/plan/layout.h"
#include "models/train/run_setup.h"

namespace lockstep::models {

// Bytes of a rank at the peak of a step.
struct QuickPlan {
  double weights = 0;  // with gradients, optimizer state, and whole units of what is sharded
  double activations = 0, workspace = 0;
  double host = 0;  // of its host's memory
  double total = 0;
};

// A model is a row of equal blocks between two ends, so the memory plan (models/memory) is linear
// in the blocks, and in the sequences of a micro-batch: it is made for one and two sequences in
// models of two and four blocks, once for each way to compute a block, and is exact there. What
// pipelines, shards and offload do to it follows by arithmetic.
class QuickMemory {
 public:
  explicit QuickMemory(const RunSetup& setup) : setup_(setup) {}

  // Of the rank that needs most. Throws what PlanMemory throws for a block that cannot be.
  QuickPlan Of(const Layout& layout);

 private:
  struct Part {
    double parameters = 0, gradients = 0, optimizer = 0, activations = 0;
  };
  struct Shallow {
    Part block, ends;
    double workspace = 0;
  };
  // What PlanMemory threw, too, is thrown again for the same block.
  struct Made {
    Shallow shallow;
    std::exception_ptr error;
  };
  Shallow Make(const Layout& layout, int64_t batch) const;
  // With so many sequences in a micro-batch; it is made once.
  const Shallow& ShallowOf(const Layout& layout, int64_t batch);
  // With those of the layout.
  Shallow BlocksOf(Layout layout);

  const RunSetup& setup_;
  // By tp, cp, ep, micro-batch, whether ranks sum gradients, and recomputation.
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, bool, std::string>, Made> made_;
};

}  // namespace lockstep::models
