#include "models/memory/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/grad_mode.h"
#include "dist/collective.h"
#include "dist/expert/expert_parallel.h"
#include "dist/groups/planned_group.h"
#include "dist/mesh_parts.h"
#include "dist/shard/flat_exchange.h"
#include "models/gpt/gpt.h"
#include "models/memory/allocation_log.h"
#include "models/memory/machine_memory.h"
#include "models/options/plan_rules.h"
#include "models/train/elastic/elastic_run.h"
#include "models/train/parallelize.h"
#include "models/train/run_model.h"
#include "models/train/run_ranks.h"
#include "models/train/step/batch_tensor.h"
#include "nn/lora/lora.h"
#include "optim/clip.h"

namespace lockstep::models {
namespace {

data::Batch BatchOf(const MemoryPlanOptions& o) {
  data::Batch batch{.rows = o.batch_size, .cols = o.window, .step_targets = 1};
  if (o.document_mask) batch.first_key.resize(static_cast<size_t>(batch.rows * batch.cols));
  return batch;
}

// What micro-batches, several at once in a pipeline, keep between their forwards and their
// backwards.
class ActivationsInFlight : public BackwardObserver {
 public:
  explicit ActivationsInFlight(AllocationLog& log) : log_(log), since_(log.Now()) {}
  bool awaits_leaves() const override { return false; }
  void OnBegin(const BackwardPlan&) override { log_.SetKind(since_, &MemoryKinds::activations); }
  void OnEnd() override { since_ = log_.Now(); }

 private:
  AllocationLog& log_;
  size_t since_;
};

// Trainer::Step without the parts that need values: the loss, and whether it is finite.
void Step(const MemoryPlanOptions& o, int64_t step, LanguageModel& model,
          const Objective& objective, StepRanks& ranks, optim::Optimizer& optimizer,
          StepState& state, AllocationLog& log) {
  const auto training = optimizer.BeginStep(state, step, 1e-3);
  const size_t begin = log.Now();
  const data::Batch batch = BatchOf(o);
  PhaseClock clock(&StepTimes::data_ms, /*trace=*/nullptr);
  ActivationsInFlight kept(log);
  StepWork work(model, objective, state, /*micro_batches=*/1,
                [&](int64_t) -> const data::Batch& { return batch; }, clock, {&kept});
  ranks.Gradients(work);
  // Nothing else is alive now.
  log.SetKind(begin, &MemoryKinds::gradients);
  optim::ClipGradNorm(model.Parameters(), o.clip, state);
  const size_t update = log.Now();
  optimizer.Step(state);
  ranks.data().EndStep(ranks.data().round());
  model.ZeroGrad();
  // What outlives ZeroGrad is no gradient, but a table that a module keeps, or optimizer state.
  log.SetKind(begin, &MemoryKinds::workspace);
  log.SetKind(update, &MemoryKinds::optimizer);
}

// Those of a rank, that move nothing.
MeshGroups PlannedGroups(const RunSetup& setup, const ParallelPlan& plan, int64_t pipeline_rank,
                         int64_t data_rank) {
  const ParallelOptions& parallel = setup.config.parallel;
  const int64_t of_a_copy = parallel.cp * parallel.tp;
  const dist::Mesh mesh = MeshOf(
      setup.config, static_cast<int>((pipeline_rank * setup.data_ranks + data_rank) * of_a_copy),
      static_cast<int>(parallel.pp * setup.data_ranks * of_a_copy));
  return MeshGroups::Of(
      mesh,
      [&](const std::vector<std::string>& axes, bool) {
        const std::vector<int> ranks = mesh.RanksAlong(axes);
        return dist::MakePlannedGroup(static_cast<int>(ranks.size()),
                                      dist::IndexOf(ranks, mesh.rank()));
      },
      plan.sums_context_with_data);
}

std::unique_ptr<StepRanks> ShareOut(const RunSetup& setup, const MeshGroups& groups,
                                    const ParallelPlan& plan, Gpt& model) {
  return Parallelize(model, groups, plan, [&](bool) { MaterializeFor(setup, kMeta, model); });
}

template <class Values, class Projection>
int64_t IndexOfMost(const Values& values, Projection projection) {
  return std::ranges::max_element(values, {}, projection) - values.begin();
}

// A data rank that takes most: the largest shard, or the most buffers of a sum in a fixed order.
int64_t DataRankWithMost(const RunSetup& setup, const ParallelPlan& plan, int64_t pipeline_rank) {
  if (plan.shard) {
    const MeshGroups groups = PlannedGroups(setup, plan, pipeline_rank, /*data_rank=*/0);
    Gpt model(setup.model);
    const auto ranks = ShareOut(setup, groups, plan, model);
    const auto shards = dist::MeshParts::Of(model.Parameters())->Find<dist::FlatExchange>();
    return shards ? IndexOfMost(shards->ElementsByRank(), std::identity()) : 0;
  }
  if (!plan.reducer || plan.reducer->sum != dist::GradientSum::kOrdered) return 0;
  const int64_t micro_batches = std::max(plan.micro_batches, setup.data_ranks);
  const int64_t experts = setup.config.parallel.data_ranks_of_experts();
  const auto sum =
      dist::PlanFixedOrder(experts > 1 ? dist::AssignForExperts(micro_batches, setup.data_ranks,
                                                                experts, /*ordered=*/true)
                                       : dist::AssignSubtrees(micro_batches, setup.data_ranks));
  return IndexOfMost(sum.ranks, &dist::FixedOrderPlan::Rank::buffers);
}

// The plan of a rank with these stages.
MemoryPlan PlanRank(const RunSetup& setup, int64_t pipeline_rank) {
  const ParallelPlan plan = PlanOf(setup);
  const MeshGroups groups =
      PlannedGroups(setup, plan, pipeline_rank, DataRankWithMost(setup, plan, pipeline_rank));
  std::shared_ptr<Gpt> gpt;
  return PlanMemory(
      {.model = [&] { return gpt = std::make_shared<Gpt>(setup.model); },
       .ranks = [&](LanguageModel&) { return ShareOut(setup, groups, plan, *gpt); },
       .optimizer = setup.start.evaluates
                        ? std::function<std::unique_ptr<optim::Optimizer>(LanguageModel&)>()
                        : [&](LanguageModel& model) { return MakeFreshOptimizer(setup, model); },
       .objective = [&](LanguageModel& model) { return MakeObjective(setup.config, model); },
       .batch_size = setup.config.train.batch_size,
       .window = setup.sample_tokens(),
       .clip = setup.config.optim.clip,
       .device = setup.device,
       .document_mask = setup.document_mask,
       .evaluates = true,
       .graphs = setup.device.is_cuda() && setup.config.train.cuda_graphs &&
                 !SumsGradients(setup) && !setup.prefers()});
}

// The same run with this many micro-batches for each data rank.
RunSetup With(const RunSetup& setup, int64_t micro_batches) {
  RunSetup changed = setup;
  changed.micro_batches = setup.data_ranks * micro_batches;
  return changed;
}

// Micro-batches are planned as far as they differ: all after the first are alike, unless the fixed
// order adds them in turn. In a pipeline several are in flight, but once it is full, each further
// round of them adds as much as the one before: their tokens, and on a GPU what passes between
// stages.
MemoryPlan PlanAlikeOnce(const RunSetup& setup, int64_t pipeline_rank) {
  constexpr int64_t kFull = 5;  // rounds of as many micro-batches as the pipeline has ranks
  const int64_t micro_batches = setup.micro_batches / setup.data_ranks;
  const int64_t stages = setup.config.parallel.pp;
  const bool equal = setup.micro_batches % setup.data_ranks == 0;
  if (setup.config.dist.reduction != "fast" || (!equal && IsSharded(setup))) {
    return PlanRank(setup, pipeline_rank);  // which also refuses what cannot be
  }
  if (stages == 1 && (equal || micro_batches >= 2)) {
    return PlanRank(With(setup, std::min<int64_t>(micro_batches, 2)), 0);
  }
  if (!equal || micro_batches % stages != 0 || micro_batches <= kFull * stages) {
    return PlanRank(setup, pipeline_rank);
  }
  const MemoryPlan before = PlanRank(With(setup, (kFull - 1) * stages), pipeline_rank);
  MemoryPlan plan = PlanRank(With(setup, kFull * stages), pipeline_rank);
  const int64_t more = micro_batches / stages - kFull;
  for (const auto& [name, kind] : kMemoryKinds) {
    plan.peak.*kind += more * (plan.peak.*kind - before.peak.*kind);
    plan.largest.*kind += more * (plan.largest.*kind - before.largest.*kind);
  }
  plan.reserved += more * (plan.reserved - before.reserved);
  plan.host += more * (plan.host - before.host);
  return plan;
}

}  // namespace

MemoryPlan PlanMemory(const MemoryPlanOptions& o) {
  AllocationLog log(o.device);
  const std::shared_ptr<LanguageModel> model = o.model();
  // In a single process all micro-batches after the first are alike.
  const std::unique_ptr<StepRanks> ranks =
      o.ranks ? o.ranks(*model) : std::make_unique<SampleRanks>(std::min<int64_t>(o.grad_accum, 2));
  log.SetKind(0, &MemoryKinds::parameters);
  const size_t optimizer_begin = log.Now();
  const std::unique_ptr<optim::Optimizer> optimizer = o.optimizer ? o.optimizer(*model) : nullptr;
  if (optimizer) ranks->data().Begin(*optimizer);
  log.NoteKeptOnHost();
  log.SetKind(optimizer_begin, &MemoryKinds::optimizer);
  const std::unique_ptr<const Objective> objective =
      o.objective ? o.objective(*model) : std::make_unique<const LanguageObjective>();
  StepState state(kMeta, 1);
  if (model->Parameters().at(0)->value().dtype() == DType::kF16) state.EnableLossScaling();
  log.Begin();
  if (optimizer) {
    // The second step sees the optimizer state that the first one made.
    for (int i = 0; i < 2; ++i) {
      if (o.graphs && i == 1) log.BeginGraph();
      Step(o, i, *model, *objective, *ranks, *optimizer, state, log);
    }
    log.EndSteps();
  }
  if (o.evaluates) {
    const NoGrad no_grad;
    data::Batch made;
    const data::Batch batch = BatchOf(o);
    const data::Batch& rows = objective->RowsOf(batch, &made);
    const nn::DocumentScope documents(DocumentsOf(rows, kMeta));
    const auto evaluate = [&] { (*objective)(*model, rows, kMeta); };
    optimizer && optimizer->keeps_averages() ? optimizer->WithAverages(evaluate) : evaluate();
  }
  MemoryPlan plan = log.Plan();
  plan.evaluates_only = optimizer == nullptr;
  const auto parts = dist::MeshParts::Of(model->Parameters());
  const bool adapters = !nn::LoraParameters(*model).empty();
  for (const auto& p : model->Parameters()) {
    const int64_t elements = p->value().numel(), copies = parts->CopyOf(*p).second;
    if (adapters && !p->trainable()) {
      plan.left_out += elements * SizeOf(p->value().dtype());
      continue;
    }
    plan.elements += elements;
    plan.written += (elements + copies - 1) / copies;
  }
  return plan;
}

namespace {

// What one process copies, or the one that copies most: weights and optimizer state, which take
// equally many bytes for each element on every rank.
int64_t Snapshot(const RunSetup& setup, bool in_parts, double bytes_per_element,
                 int64_t most_written) {
  if (!in_parts) {
    const Gpt whole(setup.model);
    int64_t saved = 0;
    for (const auto& p : whole.Parameters()) {
      saved += p->trainable() ? p->logical_shape().numel() : 0;
    }
    return std::llround(bytes_per_element * static_cast<double>(saved));
  }
  const ParallelOptions& parallel = setup.config.parallel;
  const auto ranks = static_cast<int>(parallel.pp * setup.data_ranks * parallel.cp * parallel.tp);
  const auto copies = std::ssize(RanksWithSamePart(setup, MeshOf(setup.config, 0, ranks)));
  return std::llround(bytes_per_element *
                      static_cast<double>((most_written + copies - 1) / copies));
}

}  // namespace

MemoryPlan PlanMemory(const RunSetup& setup) {
  const ParallelOptions& parallel = setup.config.parallel;
  MemoryPlan plan;
  int64_t most_written = 0, most_elements = 0, most_on_host = 0, most_evaluating = 0;
  double bytes_per_element = 0;
  for (int64_t rank = 0; rank < parallel.pp; ++rank) {
    const MemoryPlan of_rank = PlanAlikeOnce(setup, rank);
    int64_t own = of_rank.largest.parameters + of_rank.largest.optimizer + of_rank.host_kept -
                  of_rank.left_out;
    // Weights at the start of a round are those that are saved anyway.
    if (WorkersOf(setup) > 0) own -= of_rank.elements * SizeOf(DType::kF32);
    bytes_per_element = std::max(
        bytes_per_element,
        static_cast<double>(own) / static_cast<double>(std::max<int64_t>(of_rank.elements, 1)));
    most_written = std::max(most_written, of_rank.written);
    most_elements = std::max(most_elements, of_rank.elements);
    most_on_host = std::max(most_on_host, of_rank.host);
    most_evaluating = std::max(most_evaluating, of_rank.evaluating);
    if (rank > 0 && of_rank.peak.total() <= plan.peak.total()) continue;
    plan = of_rank;
    if (parallel.pp > 1) plan.pipeline_rank = rank;
  }
  plan.host = most_on_host;
  plan.evaluating = most_evaluating;
  plan.program = setup.device.is_cpu() ? ResidentBytes() : setup.runtime_bytes;
  plan.all_copy = SavesParts(setup);
  plan.collects = SharesOutModel(setup) && !plan.all_copy;
  if ((setup.config.checkpoint.async || plan.collects) && !setup.start.evaluates) {
    plan.snapshot = Snapshot(setup, plan.all_copy, bytes_per_element, most_written);
  }
  if (setup.config.dist.elastic && DividesCopies(parallel) && !setup.start.evaluates) {
    const auto ranks = static_cast<int>(parallel.pp * setup.data_ranks * parallel.cp * parallel.tp);
    const std::vector<int> parts = PartOfRanks(setup, ranks);
    plan.state_copies = StateCopies::HostBytes(
        std::llround(bytes_per_element * static_cast<double>(most_elements)),
        /*alone=*/ranks > 1 && *std::ranges::max_element(parts) + 1 == ranks);
  }
  return plan;
}

std::string Summary(const MemoryPlan& plan, ByteFormat format) {
  std::string s = format(static_cast<double>(plan.peak.total()));
  s += plan.evaluates_only ? " at the peak of an evaluation" : " at the peak of a step";
  if (plan.pipeline_rank >= 0) s += fmt::format(" on rank {} of the pipeline", plan.pipeline_rank);
  const char* separator = ": ";
  for (const auto& [name, kind] : kMemoryKinds) {
    if (plan.largest.*kind == 0) continue;
    s += fmt::format("{}{} {}", separator, name, format(static_cast<double>(plan.peak.*kind)));
    separator = ", ";
  }
  if (plan.evaluating > plan.peak.total()) {
    s += fmt::format("; {} to evaluate", format(static_cast<double>(plan.evaluating)));
  }
  return s;
}

std::string ProcessSummary(const MemoryPlan& plan) {
  if (plan.program == 0) return "";
  const auto bytes = [](int64_t n) { return FormatBytes(static_cast<double>(n)); };
  std::string s = fmt::format("{} as rounded by the allocator, {} with the program and its data",
                              bytes(plan.reserved), bytes(plan.needed(kCpu)));
  if (plan.snapshot > 0) {
    s += fmt::format(" and {} to write checkpoints from", bytes(plan.snapshot));
  }
  if (plan.state_copies > 0) {
    s += fmt::format(" and {} to go on from without other ranks", bytes(plan.state_copies));
  }
  return s;
}

std::string Table(const MemoryPlan& plan, Device device, ByteFormat format) {
  const auto bytes = [&](int64_t n) { return format(static_cast<double>(n)); };
  std::string s = fmt::format("  {:<14}{:>14}{:>14}", "memory", "at the peak", "at most");
  if (plan.pipeline_rank >= 0) {
    s += fmt::format("  of rank {} of the pipeline, which takes most", plan.pipeline_rank);
  }
  const auto row = [&](std::string_view name, int64_t n) {
    s += fmt::format("\n  {:<14}{:>14}", name, bytes(n));
  };
  for (const auto& [name, kind] : kMemoryKinds) {
    if (plan.largest.*kind == 0) continue;
    row(name, plan.peak.*kind);
    s += fmt::format("{:>14}", bytes(plan.largest.*kind));
  }
  row("total", plan.peak.total());
  row("as rounded", plan.reserved);
  if (plan.evaluation > 0) row("evaluation", plan.evaluation);
  if (plan.evaluating > plan.peak.total()) row("to evaluate", plan.evaluating);
  if (plan.program > 0) {
    row(device.is_cpu() ? "program, data" : "CUDA itself", plan.program);
    if (device.is_cpu() && plan.snapshot > 0) row("for saving", plan.snapshot);
    if (device.is_cpu() && plan.state_copies > 0) row("for others", plan.state_copies);
  }
  row("needed", plan.needed(device));
  if (device.is_cpu()) return s;
  if (plan.host > 0) row("host: offload", plan.host);
  if (plan.snapshot > 0) row("host: saving", plan.snapshot);
  if (plan.state_copies > 0) row("host: others", plan.state_copies);
  return s;
}

}  // namespace lockstep::models
