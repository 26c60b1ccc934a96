// The memory that a Reducer will take, for planning before there is one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/parameter.h"
#include "dist/data_parallel/reducer.h"

namespace lockstep::dist {

struct ReducerMemory {
  std::vector<Bucket> buckets;  // gradients are slices of these, all allocated up front
  int64_t buffers = 1;          // per bucket; above 1 for kOrdered with several micro-steps
  // For exchanging and adding buckets: each lane needs as much as its largest bucket does.
  int64_t staging_bytes = 0;
};

// For a Reducer with these options on each of `ranks` ranks, whose parameters will be on `device`
// (they may still be on the meta device). Assumes that a hook is Bf16Sum. Of tensors: a
// group of CPUs takes at most 4 MiB per rank besides, NCCL a few hundred MiB.
ReducerMemory PlanReducerMemory(std::span<const std::shared_ptr<Parameter>> parameters,
                                const ReducerOptions& options, int64_t ranks, Device device);

}  // namespace lockstep::dist
