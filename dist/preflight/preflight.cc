#include "dist/preflight/preflight.h"

#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <ostream>

#include "core/cuda/device.h"
#include "core/cuda/handles.h"
#include "core/io/file.h"
#include "core/system/environment.h"
#include "dist/control/claim.h"
#include "dist/control/own_address.h"
#include "dist/control/socket.h"
#include "dist/groups/agreement.h"
#include "dist/preflight/gpu_facts.h"
#include "dist/preflight/judgement.h"
#include "dist/preflight/measure.h"
#include "dist/preflight/report.h"
#include "dist/world.h"

namespace lockstep::dist {
namespace {

// In Mbit/s; 0 where the system does not know it.
int SpeedOf(const std::string& interface) {
  try {
    return std::max(0, std::stoi(ReadFile(StrCat("/sys/class/net/", interface, "/speed"))));
  } catch (const std::exception&) {  // it is down, for example
    return 0;
  }
}

// Not one that leads to containers of this machine alone, whatever speed it claims.
bool IsHardware(const std::string& interface) {
  return PathExists(StrCat("/sys/class/net/", interface, "/device"));
}

RankFacts FactsOfThisRank(const Rendezvous& r, Device device, const PreflightOptions& options) {
  RankFacts facts{r.local_rank, HostName(), StrCat(device)};
  const auto own = ChooseAddress(r, std::chrono::steady_clock::now() + options.timeout);
  facts.address = own.address;
  facts.why = own.why;
  for (const auto& [interface, address] : InterfaceAddresses()) {
    if (address == own.address) facts.interface = interface;
    if (address != own.address && !IsHardware(interface)) continue;
    if (const int speed = SpeedOf(interface); speed > 0) facts.mbits[interface] = speed;
  }
  utsname system = {};
  uname(&system);
  if (device.is_cuda()) {
    facts.gpu = FactsOfGpu(device);
    facts.versions = GpuVersions();
    facts.versions["GPU"] = facts.gpu.name;
  }
  facts.versions["build"] = Claim::Of(r.world_size).build;
  facts.versions["kernel"] = system.release;
  facts.versions["glibc"] = gnu_get_libc_version();
  for (const auto& [name, value] : ProcessEnvironment()) {
    if (name.starts_with("NCCL_")) facts.settings[name] = value;
  }
  return facts;
}

void Measure(World& world, ProcessGroup& control, Device device, const PreflightOptions& options,
             PreflightFacts* facts) {
  const auto machines = MachinesOf(facts->ranks);
  facts->clocks = MeasureClocks(control, machines);
  const auto data = world.Group(
      {.name = "preflight data", .device = device, .timeout = options.timeout + options.patience});
  facts->pairs = MeasurePairs(control, data, machines, options.patience);
  std::vector<double> bandwidths;
  for (const PairFacts& p : facts->pairs) {
    bandwidths.push_back(p.bandwidth);
    if (p.answered) continue;
    MeetBeforeThrowing(control);
    throw PreflightError("ranks do not reach each other");
  }
  facts->sum = MeasureSum(control, data, Median(bandwidths), options.patience);
  if (!facts->sum->answered) {
    MeetBeforeThrowing(control);
    throw PreflightError("the all-reduce did not end");
  }
  // At once: while it still runs at the clocks of work.
  std::optional<GpuClocks> clocks;
  if (device.is_cuda() && !cuda::Simulated())
    clocks = ClocksOfGpu(facts->ranks[static_cast<size_t>(world.rank())].gpu.bus);
  const auto texts = GatherTexts(control, ToText(clocks));
  for (size_t r = 0; r < texts.size(); ++r) {
    if (const auto of = ParseGpuClocks(texts[r])) facts->gpu_clocks[static_cast<int>(r)] = *of;
  }
}

}  // namespace

void RunPreflight(const Rendezvous& rendezvous, Device device, std::ostream& report,
                  const PreflightOptions& options) {
  std::optional<cuda::OwnedStream> stream;
  std::optional<StreamGuard> guard;
  if (device.is_cuda()) guard.emplace(stream.emplace(device));
  World world(rendezvous, {.timeout = options.join, .heartbeat = options.patience});
  const auto control = world.Group({.name = "preflight", .timeout = options.timeout});
  PreflightFacts facts;
  facts.patience = std::chrono::duration<double>(options.patience).count();
  for (const std::string& text :
       GatherTexts(*control, ToText(FactsOfThisRank(rendezvous, device, options)))) {
    facts.ranks.push_back(ParseRankFacts(text));
  }
  std::exception_ptr error;
  try {
    // Libraries that differ may hang.
    if (Judge(facts).stops.empty()) Measure(world, *control, device, options, &facts);
  } catch (const PreflightError&) {  // which the judgement says better
  } catch (const std::exception& e) {
    error = std::current_exception();
    facts.failure = e.what();
  }
  const Judgement judgement = Judge(facts);
  if (world.rank() == 0) report << MakeReport(facts, judgement) << std::flush;
  if (error) std::rethrow_exception(error);
  if (judgement.stops.empty()) return;
  MeetBeforeThrowing(*control);
  throw PreflightError(judgement.stops.front());
}

}  // namespace lockstep::dist
