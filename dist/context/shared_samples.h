// Data parallelism where several ranks compute each sample together.
#pragma once

#include <memory>
#include <vector>

#include "dist/data_parallel/data_parallel.h"

namespace lockstep::dist {

// DataParallel where `parts` neighbouring ranks have the same micro-batches, and of each the loss
// and gradients of a part (ContextRanks, apart): the sums are over all ranks. For
// GradientSum::kFast.
class SharedSamples : public DataParallel {
 public:
  // `options.micro_batches` counts whole ones. Throws ArgumentError unless parts divides the ranks,
  // and for another sum.
  SharedSamples(ProcessGroup* group, int parts, Module& module, ReducerOptions options,
                std::shared_ptr<ProcessGroup> control = nullptr);

  const std::vector<int64_t>& micro_order() const override { return order_; }
  int64_t micro_batches() const override { return DataParallel::micro_batches() / parts_; }

 private:
  const int parts_;
  std::vector<int64_t> order_;
};

}  // namespace lockstep::dist
