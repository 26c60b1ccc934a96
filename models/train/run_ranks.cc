#include "models/train/run_ranks.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <sstream>

#include "core/system/environment.h"
#include "core/system/processors.h"
#include "dist/groups/agreement.h"
#include "dist/launch/rank_device.h"
#include "models/options/plan_rules.h"
#include "models/report/run_progress.h"
#include "models/train/parallelize.h"

namespace lockstep::models {
namespace {

std::string BackendOf(const RunConfig& config, Device device) {
  const std::string& backend = config.dist.backend;
  const std::string fits = device.is_cuda() ? "nccl" : "tcp";
  if (backend != "auto" && backend != fits) {
    throw InputError(StrCat("dist.backend = ", backend, " does not move data on ", device,
                            ": use dist.backend = ", fits, ", or auto"));
  }
  return fits;
}

// Runs in the thread of the heartbeat, which blocking output must not hold up.
void WarnWithoutWaiting(const std::string& message) {
  pollfd output = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&output, 1, /*timeout=*/0) == 1 && (output.revents & POLLOUT) != 0) Warn(message);
}

dist::GroupOptions GroupOptionsOf(const RunConfig& config, const std::string& name, Device device,
                                  std::shared_ptr<dist::FlightRecorder> recorder) {
  return {.name = name,
          .device = device,
          .timeout = std::chrono::seconds(config.dist.timeout),
          .check_every_call = config.dist.check == "full",
          .recorder = std::move(recorder),
          .say = WarnWithoutWaiting};
}

// What the ranks along an axis of the mesh mostly send each other, which names their group in
// errors.
const char* WhatMovesAlong(const std::string& axis) {
  const bool inside_model = axis == "pp" || axis == "cp" || axis == "tp" || axis == "ep";
  return inside_model ? "activations" : "gradients";
}

// " (1.25 MiB)"
std::string InMib(int64_t bytes) {
  std::ostringstream text;
  text.precision(3);
  text << " (" << static_cast<double>(bytes) / (1 << 20) << " MiB)";
  return text.str();
}

void RecordSpan(TraceRecorder& trace, const dist::CommunicationSpan& span) {
  if (!trace.active()) return;
  if (span.bucket < 0) {
    trace.Record(span.of_experts ? "waiting for gradients of experts" : "waiting for gradients",
                 "communication", span.begin, span.end);
    return;
  }
  const std::string of = span.of_experts ? " of experts" : "";
  trace.NameThread(StrCat("communication", of, span.lane > 0 ? StrCat(" ", span.lane + 1) : ""));
  trace.Record(StrCat("bucket ", span.bucket, of, InMib(span.bytes)), "communication", span.begin,
               span.end);
}

}  // namespace

int ThreadsOf(const RunConfig& config, const dist::Rendezvous& rendezvous) {
  if (config.threads > 0) return static_cast<int>(config.threads);
  const int usable = UsableProcessors();
  // Our launcher's ranks share what it may use. Other launchers may give each rank its own.
  const bool ours = EnvironmentVariable("LOCKSTEP_RESTARTS").has_value();
  return dist::ThreadsOfRank(rendezvous, usable, ours ? usable : MachineProcessors());
}

int64_t DataRanksOf(const RunConfig& config, int64_t ranks) {
  const ParallelOptions& parallel = config.parallel;
  int64_t of_a_copy = 1;
  std::string factors;
  for (const auto& [key, size] : {std::pair("parallel.pp", parallel.pp),
                                  {"parallel.cp", parallel.cp},
                                  {"parallel.tp", parallel.tp}}) {
    of_a_copy *= size;
    if (size > 1) factors += StrCat(factors.empty() ? "" : " times ", key, " = ", size);
  }
  if (ranks % of_a_copy != 0) {
    throw InputError(StrCat(factors, " does not divide the ", ranks,
                            ranks == 1 ? " rank" : " ranks", " of this run: start a multiple of ",
                            of_a_copy, " processes, as with --nproc=", of_a_copy));
  }
  return ranks / of_a_copy;
}

dist::Mesh MeshOf(const RunConfig& config, int rank, int ranks) {
  const ParallelOptions& parallel = config.parallel;
  const int64_t data_ranks = DataRanksOf(config, ranks), shards = parallel.shard_ranks;
  // Other sizes are refused when the run is prepared.
  const bool has_copies = parallel.shard != "none" && shards > 0 && data_ranks % shards == 0;
  const bool has_experts = data_ranks % parallel.data_ranks_of_experts() == 0;
  return dist::Mesh({.pp = static_cast<int>(parallel.pp),
                     .cp = static_cast<int>(parallel.cp),
                     .tp = static_cast<int>(parallel.tp),
                     .shard = has_copies ? static_cast<int>(shards) : 0,
                     .ep = has_experts ? static_cast<int>(parallel.ep) : 1},
                    rank, ranks);
}

PipelinePlan ToPipelinePlan(const RunConfig& config, int64_t window, TraceRecorder* trace) {
  PipelinePlan plan{.kind = dist::ParsePipelineKind(config.parallel.schedule), .window = window};
  if (trace != nullptr) {
    plan.on_span = [trace](const dist::PipelineSpan& span) {
      trace->Record(ToString(span.action), "pipeline", span.begin, span.end, "pipeline");
    };
  }
  return plan;
}

dist::ReducerOptions ToReducerOptions(const DistOptions& options, int64_t micro_batches,
                                      TraceRecorder* trace) {
  const auto bytes = [](double mib) {
    return std::max<int64_t>(1, static_cast<int64_t>(mib * (1 << 20)));
  };
  dist::ReducerOptions r;
  r.first_bucket_bytes = bytes(options.first_bucket_mib);
  if (options.bucket_mib > 0) r.bucket_bytes = bytes(options.bucket_mib);
  r.micro_batches = micro_batches;
  if (options.reduction == "ordered") r.sum = dist::GradientSum::kOrdered;
  if (options.compress == "bf16") {
    r.hook = dist::Bf16Sum();
    r.lanes = 2;
  }
  if (trace != nullptr) {
    r.on_span = [trace](const dist::CommunicationSpan& span) { RecordSpan(*trace, span); };
  }
  return r;
}

dist::DiLoCoOptions ToDiLoCoOptions(const DistOptions& options, int64_t micro_batches) {
  return {.every = options.outer_every,
          .lr = options.outer_lr,
          .momentum = options.outer_momentum,
          .dtype = options.outer_dtype == "bf16" ? DType::kBF16 : DType::kF32,
          .micro_batches = micro_batches,
          .bucket_bytes = static_cast<int64_t>(options.bucket_mib * (1 << 20))};
}

dist::ShardOptions ToShardOptions(const RunConfig& config, int64_t micro_batches,
                                  TraceRecorder* trace) {
  const ParallelOptions& parallel = config.parallel;
  dist::ReducerOptions reducer = ToReducerOptions(config.dist, micro_batches, trace);
  dist::ShardOptions s = parallel.shard == "full"        ? dist::Zero3()
                         : parallel.shard == "gradients" ? dist::Zero2()
                                                         : dist::Zero1();
  if (!parallel.reshard_after_forward) s.reshard = dist::Reshard::kAfterBackward;
  // Else every micro-batch of a pipeline would gather its stage again.
  if (parallel.pp > 1) s.reshard = dist::Reshard::kAfterStep;
  s.sum = reducer.sum;
  s.micro_batches = micro_batches;
  s.experts = parallel.data_ranks_of_experts();
  s.on_span = std::move(reducer.on_span);
  if (trace != nullptr) {
    s.on_gather = [trace](const dist::GatherSpan& span) {
      if (!trace->active()) return;
      trace->Record(StrCat("gather ", span.module, InMib(span.bytes)), "communication", span.begin,
                    span.end, /*track=*/"gathers");
    };
  }
  return s;
}

RunRanks::RunRanks(const RunConfig& config, const dist::Rendezvous& rendezvous, Device device,
                   std::shared_ptr<dist::FlightRecorder> recorder,
                   const std::function<bool()>& gives_up)
    : rendezvous_(rendezvous), backend_(BackendOf(config, device)) {
  if (rendezvous.world_size == 1) return;
  const auto timeout = std::chrono::seconds(config.dist.timeout);
  world_ = std::make_unique<dist::World>(
      rendezvous, dist::WorldOptions{.timeout = timeout,
                                     .heartbeat = std::chrono::seconds(config.dist.heartbeat),
                                     .gives_up = gives_up});
  if (recorder) recorder->SetMeeting(world_->meeting());
  control_ = world_->Group(GroupOptionsOf(config, "control", kCpu, recorder));
  checkpoints_ = world_->Group(GroupOptionsOf(config, "checkpoints", kCpu, /*recorder=*/nullptr));
  if (config.dist.elastic && DividesCopies(config.parallel)) {
    copies_ = world_->Group(GroupOptionsOf(config, "copies", kCpu, /*recorder=*/nullptr));
  }
  const dist::Mesh mesh = MeshOf(config, rank(), size());
  groups_ = MeshGroups::Of(
      mesh,
      [&](const std::vector<std::string>& axes, bool on_host) {
        const bool of_all = std::ssize(mesh.RanksAlong(axes)) == size();
        if (on_host && of_all) return control_;
        const auto options =
            on_host ? GroupOptionsOf(config, "control", kCpu, recorder)
                    : GroupOptionsOf(config, WhatMovesAlong(axes[0]), device, recorder);
        const bool of_samples = of_all && axes[0] == "dp";
        return of_samples ? world_->Group(options) : world_->Group(mesh, axes, options);
      },
      SumsContextWithData(config));
  groups_.all = control_;
}

std::vector<std::string> RunRanks::OnEveryRank(const std::function<std::string()>& f) const {
  if (!control_) return {f()};
  std::string text;
  std::exception_ptr mine;
  int64_t failure = 0;  // 1: an InputError, 2: another
  try {
    const dist::Pause pause(control_.get(), "preparing the run");
    text = f();
  } catch (const std::exception& e) {
    mine = std::current_exception();
    text = e.what();
    failure = dynamic_cast<const InputError*>(&e) != nullptr ? 1 : 2;
  }
  const auto failures = dist::GatherValues(*control_, std::span(&failure, 1));
  const auto texts = dist::GatherTexts(*control_, text);
  for (size_t r = 0; r < failures.size(); ++r) {
    if (failures[r][0] == 0) continue;
    dist::MeetBeforeThrowing(*control_);
    if (mine) std::rethrow_exception(mine);
    const std::string error = StrCat("rank ", r, ": ", texts[r]);
    if (failures[r][0] == 1) throw InputError(error);
    throw Error(error);  // which a restart may mend
  }
  return texts;
}

void RunRanks::CheckSameOptions(const RunConfig& config) const {
  if (!control_) return;
  const auto all = OnEveryRank([&] { return ToToml(config); });
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    auto differences = Difference(RunConfigFromToml(all[0], "rank 0"),
                                  RunConfigFromToml(all[r], StrCat("rank ", r)));
    std::erase_if(differences, [](const OptionDifference& d) { return d.of_machine; });
    if (differences.empty()) continue;
    dist::MeetBeforeThrowing(*control_);
    throw InputError(
        StrCat("rank ", r, " was started with different options from rank 0 (rank 0 -> ", "rank ",
               r, "):\n", ToString(differences), "start all ranks with the same options"));
  }
}

RunStart RunRanks::FromMain(const std::function<RunStart()>& decide) const {
  RunStart start;
  const std::string text = OnEveryRank([&]() -> std::string {
    OnMain("looking into the run folder", [&] { start = decide(); });
    return StrCat(start.step, " ", start.accepts_differences, " ", start.is_own, "\n",
                  start.checkpoint.value_or(""), "\n", start.init_from, "\n", start.weights, "\n",
                  start.going_on ? ToJson(*start.going_on) : "");
  })[0];
  if (is_main()) return start;
  std::istringstream in(text);
  std::string path;
  in >> start.step >> start.accepts_differences >> start.is_own;
  in.get();
  std::getline(in, path);
  std::getline(in, start.init_from);
  std::getline(in, start.weights);
  const std::string state(std::istreambuf_iterator<char>(in), {});
  if (!state.empty()) start.going_on = ParseTrainerState(state, "rank 0's state");
  if (!path.empty()) start.checkpoint = path;
  return start;
}

}  // namespace lockstep::models
