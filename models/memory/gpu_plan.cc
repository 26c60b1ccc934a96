#include "models/memory/gpu_plan.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "models/memory/auto_recompute.h"
#include "models/memory/machine_memory.h"
#include "models/memory/memory_advice.h"
#include "models/report/format.h"
#include "models/train/parallel_plan.h"
#include "models/train/run_setup.h"

namespace lockstep::models {
namespace {

// A machine usually has two to four times the memory of its GPUs.
constexpr int64_t kHostOfGpu = 3;

std::string Bytes(int64_t n) { return FormatDecimalBytes(static_cast<double>(n)); }

std::string Describe(const RunSetup& setup, const DeviceSet& gpus) {
  const RunConfig& c = setup.config;
  const GptConfig& m = setup.model;
  std::string text = fmt::format(
      "{}: {} parameters, {} layers, width {}\n"
      "{} x {}: {} x {} tokens a micro-batch, {} micro-batches a step; {}, {}",
      c.model.preset.empty() ? "model" : c.model.preset,
      FormatCount(static_cast<double>(Gpt(m).NumWeights())), m.n_layer, m.n_embd, gpus.count,
      Bytes(gpus.bytes), c.train.batch_size, setup.window(), setup.micro_batches, c.train.precision,
      c.optim.name);
  if (m.recompute.automatic || m.recompute.part != RecomputeChoice::Part::kNone) {
    text += ", recomputes " + Describe(m.recompute, m.n_layer);
  }
  if (m.offload.activations) text += ", offloads activations";
  if (c.parallel.pp > 1) {
    text += fmt::format(", pipelines of {} ranks by {}", c.parallel.pp, c.parallel.schedule);
  }
  for (const auto& [key, size] : {std::pair("parallel.tp", c.parallel.tp),
                                  {"parallel.cp", c.parallel.cp},
                                  {"parallel.ep", c.parallel.ep}}) {
    if (size > 1) text += fmt::format(", {}={}", key, size);
  }
  if (IsSharded(setup)) {
    const int64_t shards = c.parallel.shard_ranks > 0 ? c.parallel.shard_ranks : setup.data_ranks;
    text += fmt::format(", parallel.shard={} on {} ranks", c.parallel.shard, shards);
  }
  return text;
}

}  // namespace

DeviceSet ParseDeviceSet(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const long long count = std::strtoll(text.c_str(), &end, 10);
  const std::string rest = end;
  const double gigabytes = rest.starts_with("x") ? std::strtod(rest.c_str() + 1, &end) : 0;
  const bool digits = text.find_first_not_of("0123456789.x") == std::string::npos;
  if (!digits || *end != '\0' || count < 1 || count > 1000000 || !(gigabytes > 0) ||
      gigabytes > 1e6) {
    throw InputError(StrCat(name, " = \"", text, "\" must be a number of ", name,
                            " and the GB of each, as in --", name, "=",
                            name == "hosts" ? "1x512" : "8x80"));
  }
  return {.count = count, .bytes = std::llround(gigabytes * 1e9)};
}

GpuPlan PlanOnGpus(const Options& options, const RunConfig& config, const DeviceSet& gpus,
                   const DeviceSet& hosts,
                   const std::function<void(const std::string&)>& before_search) {
  if (gpus.count % hosts.count != 0) {
    throw InputError(StrCat("hosts = ", hosts.count, " does not divide the ", gpus.count,
                            " GPUs: each machine has equally many of them"));
  }
  RunSetup setup = PrepareShape(options, config, {DeviceType::kCuda, 0}, gpus.count);
  setup.runtime_bytes = kCudaBytes;
  const DeviceMemory host{hosts.bytes, hosts.bytes};
  const int64_t on_host = gpus.count / hosts.count;
  const auto fits_gpu = [&](const MemoryPlan& plan, double share = 1) {
    return static_cast<double>(plan.needed(setup.device)) <=
           share * static_cast<double>(gpus.bytes);
  };
  const auto fits_host = [&](const MemoryPlan& plan) {
    return HostFitOf(plan, setup.device, host, on_host) == MemoryFit::Kind::kFits;
  };
  GpuPlan result;
  result.memory = SettleRecompute(
      setup, [&](const MemoryPlan& plan) { return fits_gpu(plan) && fits_host(plan); });
  const bool gpu_fits = fits_gpu(result.memory);
  result.fits = gpu_fits && fits_host(result.memory);
  std::string& text = result.text;
  text = fmt::format("{}\n{}\n{}: needs {} of {}", Describe(setup, gpus),
                     Table(result.memory, setup.device, FormatDecimalBytes),
                     gpu_fits ? "fits" : "does not fit", Bytes(result.memory.needed(setup.device)),
                     Bytes(gpus.bytes));
  const int64_t kept = result.memory.reserved + kCudaBytes;
  if (gpu_fits && kept > result.memory.needed(setup.device)) {
    text += fmt::format(" ({} with the freed blocks that the allocator keeps while there is room)",
                        Bytes(kept));
  }
  if (gpu_fits && result.memory.host > 0) {
    text += fmt::format(", and for each GPU {} of its host's memory", Bytes(result.memory.host));
  }
  if (!gpu_fits) {
    const auto with_share = [&](double share) {
      return
          [&, share](const MemoryPlan& plan) { return fits_gpu(plan, share) && fits_host(plan); };
    };
    const MemoryFits with_room = with_share(1 - kPlanTolerance);
    std::vector<MemoryAim> aims = {{with_room}, {with_share(1), StrCat("but ", kFitsClosely)}};
    // Hosts that are not known may have this much.
    const auto on_usual_host = [&](const MemoryPlan& plan) {
      return with_room(plan) && plan.host <= kHostOfGpu * gpus.bytes;
    };
    if (hosts.bytes == 0) aims.insert(aims.begin(), {on_usual_host});
    if (before_search) before_search(text);
    text += "\n" + MemoryAdvice(setup, aims, FormatDecimalBytes);
  } else if (!fits_gpu(result.memory, 1 - kPlanTolerance) || kept > gpus.bytes) {
    text += StrCat(", but ", kFitsClosely);
  }
  if (result.fits < gpu_fits) {
    text += "\nbut not in the hosts' memory: " +
            JudgeHost(result.memory, setup.device, host, on_host, FormatDecimalBytes).text;
  }
  return result;
}

}  // namespace lockstep::models
