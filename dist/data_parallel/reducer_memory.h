// What a Reducer will take, before there is one: for plans.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/parameter.h"
#include "dist/data_parallel/reducer.h"

namespace lockstep::dist {

struct ReducerMemory {
  std::vector<Bucket> buckets;  // the gradients are slices of them, and all there from the start on
  int64_t buffers = 1;          // of each bucket: above 1 for kOrdered with several micro-steps
  // Where buckets are exchanged and added: in the lanes, as much as each one's largest bucket
  // needs.
  int64_t staging_bytes = 0;
};

// Of a Reducer with these options on each of `ranks` ranks, whose parameters are to be on `device`
// (they may be on the meta device). A hook is taken for Bf16Sum. What NCCL takes for itself, some
// hundred MiB, is not in it.
ReducerMemory PlanReducerMemory(std::span<const std::shared_ptr<Parameter>> parameters,
                                const ReducerOptions& options, int64_t ranks, Device device);

}  // namespace lockstep::dist
