#include "models/plan/search.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <map>
#include <tuple>
#include <utility>

#include "models/memory/auto_recompute.h"
#include "models/memory/memory_plan.h"
#include "models/options/plan_rules.h"
#include "models/plan/quick_memory.h"
#include "models/train/run_checks.h"
#include "models/train/run_ranks.h"
#include "models/train/utilization.h"

namespace lockstep::models {
namespace {

constexpr int64_t kMostTokens = 65536;  // of a micro-batch
constexpr int64_t kLeastTokens = 2048;  // of a sequence's part, with cp
constexpr size_t kOfMesh = 6;           // candidates that are kept for each mesh
constexpr double kSameTime = 0.005;     // times that differ by less are equal

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::vector<int64_t> Divisors(int64_t n, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(n, most); ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return all;
}

std::vector<int64_t> PowersOfTwo(int64_t most) {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= most; n *= 2) all.push_back(n);
  return all;
}

// Whether the closed form may be far too low: these keep what weight gradients need.
bool NeedsPlan(const Layout& l) { return l.schedule == "zb_h1" || l.schedule == "zbv"; }

class Search {
 public:
  Search(const Options& options, const RunSetup& setup, const Cluster& cluster,
         const SearchOptions& search)
      : options_(options),
        setup_(setup),
        cluster_(cluster),
        search_(search),
        asked_(setup.asked),
        model_(PlannedModel::Of(setup)),
        memory_(setup),
        trial_(setup) {}

  SearchResult Run() {
    const std::vector<MeshSizes> meshes = Meshes();
    if (meshes.empty()) {
      throw InputError(StrCat("no plan with these sizes (parallel.pp, tp, cp, ep) has ",
                              cluster_.devices, " ranks: leave one of them out"));
    }
    for (const MeshSizes& mesh : meshes) TryMesh(mesh);
    Rank();
    SearchResult result;
    PlanExactly(&result);
    if (nearest_) result.nearest = nearest_->first;
    result.tried = result.fitted = fitted_;
    for (auto& [reason, failed] : failed_) {
      result.tried += failed.plans;
      result.failed.push_back(std::move(failed));
    }
    std::ranges::stable_sort(result.failed, std::greater(), &FailedPlans::plans);
    return result;
  }

 private:
  using Candidates = std::vector<FoundPlan>;

  bool IsFixed(const char* key) const {
    return search_.is_fixed ? search_.is_fixed(key) : options_.IsWritten(key);
  }
  // The values of an option: the user's, or all that are tried, from the simplest on.
  template <class T>
  std::vector<T> Choices(const char* key, const T& asked, std::vector<T> all) const {
    return IsFixed(key) ? std::vector<T>{asked} : all;
  }

  std::vector<MeshSizes> Meshes() const;
  std::vector<std::pair<std::string, int64_t>> Shards(const MeshSizes& mesh) const;
  std::vector<std::string> Recomputations() const;
  void TryMesh(const MeshSizes& mesh);
  void TryLayout(const Layout& layout, Candidates* candidates);
  bool KeepsRules(const Layout& layout);
  bool TakesLong(const Layout& layout) const;
  void Fail(const std::string& reason, const std::string& nearest, double lacks = 0);
  void FailUnplanned(const Layout& layout);
  template <class F>
  bool Accepts(const F& plan);
  void Rank();
  void PlanExactly(SearchResult* result);
  bool FitsExactly(FoundPlan* plan);
  // Bytes beyond what a plan may need, which is not all: no plan is exact.
  double Lacks(const FoundPlan& plan) const {
    return plan.bytes - (1 - kPlanTolerance) * static_cast<double>(cluster_.bytes);
  }

  const Options& options_;
  const RunSetup& setup_;
  const Cluster& cluster_;
  const SearchOptions& search_;
  const RunConfig& asked_;
  const PlannedModel model_;
  QuickMemory memory_;
  RunSetup trial_;  // of the rules
  std::vector<Candidates> of_mesh_;
  std::map<std::string, FailedPlans> failed_;
  std::optional<std::pair<Layout, double>> nearest_;  // and what it lacks
  int64_t fitted_ = 0;
};

// Layers are divided among the ranks of a node only.
std::vector<MeshSizes> Search::Meshes() const {
  const ParallelOptions& p = asked_.parallel;
  const int64_t experts = setup_.model.mixture.n_expert;
  const int64_t parts = std::max<int64_t>(1, setup_.window() / kLeastTokens);
  std::vector<MeshSizes> all;
  for (const int64_t pp :
       Choices("parallel.pp", p.pp, Divisors(cluster_.devices, setup_.model.n_layer + 2))) {
    for (const int64_t tp :
         Choices("parallel.tp", p.tp, Divisors(cluster_.devices / pp, cluster_.per_node))) {
      for (const int64_t cp :
           Choices("parallel.cp", p.cp, PowersOfTwo(std::min<int64_t>(64, parts)))) {
        const int64_t dp = cluster_.devices / (pp * tp * cp);
        if (dp == 0 || dp * pp * tp * cp != cluster_.devices) continue;
        for (const int64_t ep :
             Choices("parallel.ep", p.ep,
                     PowersOfTwo(std::max<int64_t>(1, std::min(experts, dp * cp))))) {
          all.push_back({.dp = dp, .tp = tp, .pp = pp, .cp = cp, .ep = ep});
        }
      }
    }
  }
  return all;
}

// Across all data ranks, or those of a node.
std::vector<std::pair<std::string, int64_t>> Search::Shards(const MeshSizes& mesh) const {
  const ParallelOptions& p = asked_.parallel;
  if (IsFixed("parallel.shard")) return {{p.shard, p.shard_ranks}};
  std::vector<std::pair<std::string, int64_t>> all = {{"none", 0}};
  if (mesh.dp == 1) return all;
  const int64_t in_node = cluster_.per_node / (mesh.tp * mesh.cp);
  for (const char* level : {"optimizer", "gradients", "full"}) {
    if (mesh.pp > 1 && level == std::string_view("full")) continue;  // does what gradients does
    all.emplace_back(level, 0);
    if (in_node > 1 && in_node < mesh.dp) all.emplace_back(level, in_node);
  }
  return all;
}

std::vector<std::string> Search::Recomputations() const {
  if (IsFixed("train.recompute") && asked_.train.recompute != "auto") {
    return {asked_.train.recompute};
  }
  std::vector<std::string> all = RecomputeLadder(setup_.model);
  all.insert(all.begin(), "none");
  return all;
}

void Search::TryMesh(const MeshSizes& mesh) {
  of_mesh_.emplace_back();
  const int64_t samples = setup_.samples_per_step();
  const int64_t longest = std::max<int64_t>(1, kMostTokens * mesh.cp / setup_.window());
  const auto schedules = mesh.pp == 1
                             ? std::vector<std::string>{"1f1b"}
                             : Choices<std::string>("parallel.schedule", asked_.parallel.schedule,
                                                    {"1f1b", "interleaved", "zb_h1", "zbv"});
  if (samples % mesh.dp != 0) {
    return Fail("samples", StrCat("dp=", mesh.dp, " does not divide the ", samples,
                                  " sequences of a step (train.global_batch_size)"));
  }
  for (const int64_t batch :
       Choices("train.batch_size", asked_.train.batch_size, Divisors(samples / mesh.dp, longest))) {
    if (samples % (mesh.dp * batch) != 0) continue;
    for (const std::string& schedule : schedules) {
      for (const auto& [shard, shard_ranks] : Shards(mesh)) {
        const Layout layout{.mesh = mesh,
                            .shard = shard,
                            .shard_ranks = shard_ranks,
                            .schedule = schedule,
                            .batch = batch,
                            .grad_accum = samples / (mesh.dp * batch),
                            .chunks = search_.chunks};
        if (KeepsRules(layout)) TryLayout(layout, &of_mesh_.back());
      }
    }
  }
}

bool Search::KeepsRules(const Layout& layout) {
  const int64_t stages = layout.mesh.pp * layout.stages_of_rank();
  const int64_t parts = setup_.model.n_layer + 2;
  if (stages > parts) {
    Fail("stages", StrCat(layout.schedule, " on pp=", layout.mesh.pp, " has ", stages,
                          " stages, and the model only ", parts, " parts"));
    return false;
  }
  if (layout.schedule == "interleaved" && layout.grad_accum % layout.mesh.pp != 0) {
    Fail("rounds", StrCat("interleaved on pp=", layout.mesh.pp, " needs a multiple of ",
                          layout.mesh.pp, " micro-batches, not ", layout.grad_accum));
    return false;
  }
  if (NeedsPlan(layout) && TakesLong(layout)) {
    FailUnplanned(layout);
    return false;
  }
  Apply(layout, trial_);
  std::string why;
  const PlanRule* const rule = BrokenRule(FactsOf(trial_), &why);
  if (rule != nullptr) Fail(std::string(rule->name), why);
  return rule == nullptr;
}

// A memory plan computes on every rank about ten blocks for each of its micro-batches in flight, of
// some 0.3 ms each: too long for deep pipelines of deep models.
bool Search::TakesLong(const Layout& l) const {
  return search_.chunks != Layout().chunks ||
         (l.mesh.pp > 1 && 0.003 * static_cast<double>(l.mesh.pp) * model_.layers > 5);
}

void Search::TryLayout(const Layout& layout, Candidates* candidates) {
  const std::vector<std::string> offloads =
      cluster_.is_cpu ? std::vector<std::string>{"none"}
                      : Choices<std::string>("train.offload", asked_.train.offload,
                                             {"none", "optimizer", "activations"});
  for (const std::string& offload : offloads) {
    for (const std::string& recompute : Recomputations()) {
      FoundPlan plan{.layout = layout};
      plan.layout.recompute = recompute;
      plan.layout.offload = offload;
      QuickPlan memory;
      if (!Accepts([&] { memory = memory_.Of(plan.layout); })) continue;
      plan.bytes = memory.total;
      plan.host = memory.host;
      const double lacks = Lacks(plan);
      if (lacks > 0 || plan.host > static_cast<double>(cluster_.host_bytes)) {
        const bool weights = memory.weights > memory.activations;
        Fail(lacks <= 0 ? "memory of the host"
             : weights  ? "memory: weights, gradients and optimizer state"
                        : "memory: activations",
             Describe(plan.layout), std::max(lacks, 1.0));
        if (!nearest_ || lacks < nearest_->second) nearest_ = {plan.layout, lacks};
        continue;
      }
      ++fitted_;
      plan.time = TimeOf(model_, plan.layout, cluster_, /*exact=*/false);
      candidates->push_back(std::move(plan));
    }
  }
}

void Search::Fail(const std::string& reason, const std::string& nearest, double lacks) {
  FailedPlans& failed = failed_[reason];
  failed.reason = reason;
  if (failed.plans++ == 0 || lacks < failed.lacks) {
    failed.nearest = nearest;
    failed.lacks = lacks;
  }
}

void Search::FailUnplanned(const Layout& layout) {
  Fail("memory: not planned exactly",
       StrCat(Describe(layout), " takes too long to plan, and ", layout.schedule,
              " may need far more than the closed form says (//tools:plan --gpus plans it)"));
}

// Whether the library has nothing against a plan.
template <class F>
bool Search::Accepts(const F& plan) {
  try {
    plan();
  } catch (const Error& error) {
    Fail("the library", error.what());
    return false;
  }
  return true;
}

bool Faster(const FoundPlan& a, const FoundPlan& b) { return a.time.total < b.time.total; }

// Those of about the least time come first, the one with the least offload and recomputation, and
// then the one that was tried first, at the front; the others follow, the fastest first.
void SimplestFirst(std::vector<FoundPlan>* plans) {
  const double least = std::ranges::min_element(*plans, Faster)->time.total;
  std::ranges::stable_sort(*plans, {}, [&](const FoundPlan& p) {
    if (p.time.total > (1 + kSameTime) * least) return std::pair(4, p.time.total);
    return std::pair(2 * (p.layout.offload != "none") + (p.layout.recompute != "none"), 0.0);
  });
}

void Search::Rank() {
  std::erase_if(of_mesh_, [](const Candidates& c) { return c.empty(); });
  const auto by_best = [](const Candidates& a, const Candidates& b) {
    return Faster(a.front(), b.front());
  };
  for (Candidates& c : of_mesh_) {
    SimplestFirst(&c);
    if (c.size() > kOfMesh) c.resize(kOfMesh);
  }
  std::ranges::stable_sort(of_mesh_, by_best);
  if (of_mesh_.size() > 2 * search_.best) of_mesh_.resize(2 * search_.best);
  for (Candidates& c : of_mesh_) {
    for (FoundPlan& p : c) p.time = TimeOf(model_, p.layout, cluster_);
    SimplestFirst(&c);
  }
  std::ranges::stable_sort(of_mesh_, by_best);
}

bool Search::FitsExactly(FoundPlan* plan) {
  RunSetup run = setup_;
  Apply(plan->layout, run);
  const bool accepted = Accepts([&] {
    CheckPlan(options_, run);
    const MemoryPlan memory = PlanMemory(run);
    plan->bytes = static_cast<double>(memory.needed(run.device));
    plan->host = static_cast<double>(memory.host);
  });
  if (!accepted) return false;
  plan->exact = true;
  const double lacks = Lacks(*plan);
  if (lacks > 0) Fail("memory: too close", Describe(plan->layout), lacks);
  return lacks <= 0;
}

void Search::PlanExactly(SearchResult* result) {
  const double end = CpuSeconds() + search_.exact_seconds;
  const auto tokens = static_cast<double>(setup_.tokens_per_step);
  const Utilization utilization{.flops_per_token = model_.flops_per_token,
                                .ranks = cluster_.devices,
                                .peak_flops = cluster_.peak};
  // Whether it may be offered.
  const auto stands = [&](FoundPlan* p) {
    if (CpuSeconds() < end && !TakesLong(p->layout)) return FitsExactly(p);
    if (NeedsPlan(p->layout)) FailUnplanned(p->layout);
    return !NeedsPlan(p->layout);
  };
  for (Candidates& c : of_mesh_) {
    if (result->best.size() == search_.best) break;
    for (FoundPlan& p : c) {
      if (!stands(&p)) {
        --fitted_;
        continue;
      }
      p.mfu = *utilization.Mfu(tokens / p.time.total);
      result->best.push_back(p);
      break;
    }
  }
  std::ranges::stable_sort(result->best, Faster);
}

}  // namespace

SearchResult SearchPlans(const Options& options, const RunSetup& setup, const Cluster& cluster,
                         const SearchOptions& search) {
  return Search(options, setup, cluster, search).Run();
}

RunSetup PrepareForSearch(const Options& options, const RunConfig& config, const Cluster& cluster) {
  RunConfig alone = config;
  TrainOptions& train = alone.train;
  if (options.IsWritten("train.grad_accum") && train.grad_accum > 0) {
    options.Fail({"train.grad_accum"},
                 StrCat(options.Describe("train.grad_accum"), " does nothing where plans are ",
                        "searched, which have micro-batches of their own: say how many sequences ",
                        "a step has, by train.global_batch_size"));
  }
  if (train.global_batch_size == 0) {
    train.global_batch_size = train.batch_size * std::max<int64_t>(train.grad_accum, 1) *
                              DataRanksOf(config, cluster.devices);
  }
  train.grad_accum = 0;
  const ParallelOptions none;
  ParallelOptions& p = alone.parallel;
  std::tie(p.tp, p.pp, p.cp, p.ep) = std::tuple(1, 1, 1, 1);
  p.shard = none.shard;
  p.shard_ranks = none.shard_ranks;
  p.schedule = none.schedule;
  train.recompute = train.offload = "none";
  if (!cluster.precision.empty()) train.precision = cluster.precision;
  const Device device = cluster.is_cpu ? kCpu : Device{DeviceType::kCuda, 0};
  RunSetup setup = PrepareShape(options, alone, device, /*processes=*/1);
  setup.runtime_bytes = cluster.cuda_bytes;
  setup.asked.parallel = config.parallel;
  setup.asked.train.recompute = config.train.recompute;
  setup.asked.train.offload = config.train.offload;
  setup.asked.train.precision = config.train.precision;
  return setup;
}

}  // namespace lockstep::models
