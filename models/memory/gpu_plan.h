// Whether a run would fit on GPUs that need not be here: what //tools:plan prints.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "models/memory/memory_plan.h"
#include "models/options/config.h"

namespace lockstep::models {

// A number of equal GPUs (one rank on each), or of equal machines, and the memory of each.
struct DeviceSet {
  int64_t count = 1;
  int64_t bytes = 0;  // of each
};

// "8x80": eight of 80 GB (of 10^9 bytes, as data sheets count). InputError for anything else, that
// says what the option `name`, "gpus" or "hosts", takes.
DeviceSet ParseDeviceSet(const std::string& name, const std::string& text);

struct GpuPlan {
  MemoryPlan memory;  // of a rank; CUDA's own memory is assumed
  bool fits = false;
  std::string text;  // what was planned, the table, and the verdict with what would fit
};

// Plans the run that `config` describes, without allocating its weights; `options` are those that
// filled `config`. train.recompute=auto is settled. `hosts`: the machines, which have equal numbers
// of GPUs and must have the memory that is offloaded to them; 0 bytes: not known. Throws
// InputError. Where it does not fit, `before_search` gets the beginning of the text before what
// would fit is searched for, which takes some seconds to a minute of CPU time.
GpuPlan PlanOnGpus(const Options& options, const RunConfig& config, const DeviceSet& gpus,
                   const DeviceSet& hosts = {},
                   const std::function<void(const std::string&)>& before_search = {});

}  // namespace lockstep::models
