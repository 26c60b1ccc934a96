#include "models/memory/memory_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "models/memory/auto_recompute.h"
#include "models/train/parallel_plan.h"
#include "models/train/run_checks.h"

namespace lockstep::models {
namespace {

// A change of options.
struct Change {
  std::string cost;
  std::function<void(RunConfig&)> apply;
  bool several = false;  // of its kind at once: only where nothing is enough by itself
  int64_t gpus = 0;      // 0: as many as now
};
// Changes of one kind (a run makes at most one of them), from the cheapest to the one that saves
// most.
using Changes = std::vector<Change>;

// The largest divisors of the batch first: the step stays the same (SettleMicroBatches).
Changes SmallerBatches(const RunSetup& setup) {
  Changes changes;
  const int64_t whole = setup.config.train.batch_size;
  for (int64_t batch = whole / 2; batch >= 1; --batch) {
    if (whole % batch != 0) continue;
    changes.push_back({"the same arithmetic in smaller products",
                       [batch](RunConfig& c) { c.train.batch_size = batch; }});
  }
  return changes;
}

// Settles the micro-batches of a run whose batch size or ranks were changed, so that a step has as
// many samples as before, or each rank has where train.global_batch_size is open. False if its
// ranks cannot have equally many; InputError if one would have none.
bool SettleMicroBatches(const RunSetup& setup, RunSetup& changed) {
  const TrainOptions& was = setup.config.train;
  TrainOptions& train = changed.config.train;
  const int64_t global = was.global_batch_size;
  const int64_t accum = global > 0 ? was.grad_accum : std::max<int64_t>(was.grad_accum, 1);
  if (accum > 0) {
    const int64_t ranks = changed.data_ranks;
    const int64_t samples = global > 0 ? global : accum * was.batch_size * ranks;
    if (samples % (train.batch_size * ranks) != 0) return false;
    const int64_t needed = samples / (train.batch_size * ranks);
    if (needed != accum) train.grad_accum = needed;
  }
  changed.micro_batches = MicroBatches(train, changed.data_ranks);
  return true;
}

// Whose memory is counted in segments, and stays.
Changes WithoutGraphs(const RunSetup& setup) {
  if (setup.device.is_cpu() || !setup.config.train.cuda_graphs || SumsGradients(setup)) return {};
  return {{"each kernel is launched by itself", [](RunConfig& c) { c.train.cuda_graphs = false; }}};
}

Changes Recomputations(const RunSetup& setup) {
  constexpr const char* kCosts[] = {"hardly more arithmetic", "1.1 times the arithmetic",
                                    "1.25 to 1.33 times the arithmetic"};
  Changes changes;
  for (const std::string& what : RecomputeLadder(setup.model)) {
    changes.push_back({kCosts[changes.size()], [what](RunConfig& c) { c.train.recompute = what; }});
  }
  return changes;
}

// To the host's memory. The cheapest first: what crosses once per step, then per micro-step.
Changes Offloads(const RunSetup& setup) {
  if (setup.device.is_cpu()) return {};
  constexpr std::pair<std::string_view, const char*> kParts[] = {
      {"optimizer", "moments cross to the GPU and back in each update"},
      {"weights", "the blocks' weights cross twice in each micro-step"},
      {"activations", "activations cross to the host and back in each micro-step"}};
  const std::string& now = setup.config.train.offload;
  const auto is_there = [&](const auto& part) { return now.find(part.first) != now.npos; };
  Changes changes;
  // The parts that are not there yet from `first` on, `count` of them.
  const auto add = [&](int64_t first, int64_t count) {
    std::vector<std::string_view> names, costs;
    int64_t place = 0;
    for (const auto& part : kParts) {
      const bool is_new = !is_there(part) && place++ - first >= 0 && place - first <= count;
      if (is_new) costs.emplace_back(part.second);
      if (is_new || is_there(part)) names.push_back(part.first);
    }
    const std::string offload = fmt::format("{}", fmt::join(names, ","));
    changes.push_back({fmt::format("{}", fmt::join(costs, ", ")),
                       [offload](RunConfig& c) { c.train.offload = offload; },
                       /*several=*/count > 1});
  };
  const int64_t left = std::ssize(kParts) - std::ranges::count_if(kParts, is_there);
  for (int64_t first = 0; first < left; ++first) add(first, 1);
  for (int64_t count = 2; count <= left; ++count) add(0, count);
  return changes;
}

// On `ranks` ranks, where each copy of the model is sharded across `shards`.
void AddShards(const RunSetup& setup, int64_t ranks, int64_t shards, Changes* changes) {
  constexpr std::pair<const char*, const char*> kLevels[] = {
      {"optimizer", "no more traffic than without sharding"},
      {"gradients", "gradients are sent once per micro-step instead of once per step"},
      {"full", "1.5 times the traffic, in each micro-step"}};
  for (const auto& [level, cost] : kLevels) {
    changes->push_back({cost,
                        [=, level = level](RunConfig& c) {
                          ParallelOptions& p = c.parallel;
                          p.shard = level;
                          if (shards < ranks || p.shard_ranks > 0) p.shard_ranks = shards;
                          if (p.shard != "full") p.reshard_after_forward = true;
                          c.train.grad_dtype = "fp32";
                        },
                        /*several=*/false, ranks > setup.data_ranks ? ranks : 0});
  }
}

Changes Shards(const RunSetup& setup) {
  Changes changes;
  // The experts are split across ranks of a copy, too.
  const int64_t experts = setup.config.parallel.data_ranks_of_experts();
  for (int64_t shards = std::max<int64_t>(2, experts); shards <= setup.data_ranks; ++shards) {
    const bool fits = setup.data_ranks % shards == 0 && shards % experts == 0;
    if (fits) AddShards(setup, setup.data_ranks, shards, &changes);
  }
  return changes;
}

// Why these ranks cannot be sharded; "" if they can.
std::string NoteOnShares(const RunSetup& setup) {
  const int64_t ranks = setup.data_ranks, micro_batches = setup.micro_batches;
  if (micro_batches % ranks == 0) return "";
  const int64_t shared = std::max(micro_batches / ranks, int64_t{1}) * ranks;
  return fmt::format(
      ". --parallel.shard would need equally many micro-batches on each of the {} ranks: {} a step "
      "rather than {} (--train.global_batch_size={})",
      ranks, shared, micro_batches, shared * setup.config.train.batch_size);
}

Changes MoreGpus(const RunSetup& setup) {
  Changes changes;
  if (setup.device.is_cpu()) return changes;
  for (int64_t times = 2; times <= 64; times *= 2) {
    AddShards(setup, times * setup.data_ranks, times * setup.data_ranks, &changes);
  }
  return changes;
}

Changes SixteenBits(const RunSetup& setup) {
  const RunConfig& now = setup.config;
  const auto bf16 = [](RunConfig& c) {
    c.train.precision = "bf16";
    // Those of fp16 would do nothing, which is refused.
    c.train.loss_scale = TrainOptions().loss_scale;
    c.train.loss_scale_every = TrainOptions().loss_scale_every;
  };
  const auto pure = [bf16](RunConfig& c) {
    bf16(c);
    c.optim.master_weights = false;
    c.optim.state_dtype = "bf16";
  };
  Changes changes;
  const bool is_bf16 = now.train.precision == "bf16";
  if (!is_bf16) changes.push_back({"other numbers: weights and activations in 16 bits", bf16});
  if (!is_bf16 || now.optim.master_weights || now.optim.state_dtype != "bf16") {
    changes.push_back(
        {"other numbers: weights and state in 16 bits, rounded stochastically", pure});
  }
  // Also with the smallest micro-batches, which may come with it.
  const bool few = setup.samples_per_step() <= kMostSumsInBf16;
  if (setup.data_ranks == 1 && now.dist.reduction == "fast" && few &&
      now.train.grad_dtype == "fp32") {
    changes.push_back(
        {"other numbers: 16 bits throughout, weights and state rounded "
         "stochastically, gradients to the nearest",
         [pure](RunConfig& c) {
           pure(c);
           c.train.grad_dtype = "bf16";
         }});
  }
  return changes;
}

// Changes that are made together.
using Together = std::vector<const Change*>;

// Plans the changes of a run.
class Trials {
 public:
  Trials(const RunSetup& setup, ByteFormat format, double seconds)
      : setup_(setup), format_(format), end_(CpuSeconds() + seconds) {}

  // Whether the time was over before everything was planned.
  bool ended() const { return ended_; }

  // From now on this is to be reached. What was planned before is not planned again.
  void Aim(const MemoryAim& aim) { aim_ = &aim; }

  // A list item, if these changes together fit.
  std::optional<std::string> Try(const Together& changes) {
    const Trial& trial = Of(changes);
    if (!trial.possible || !aim_->fits(trial.plan)) return {};
    std::string item = fmt::format("{} ({}", trial.options,
                                   format_(static_cast<double>(trial.plan.needed(setup_.device))));
    if (!aim_->but.empty()) item += ", " + aim_->but;
    if (trial.plan.host > 0) {
      item += fmt::format("; {} of the host's memory for each GPU",
                          format_(static_cast<double>(trial.plan.host)));
    }
    return item + trial.costs + ")";
  }
  // The first of them that fits by itself.
  std::optional<std::string> First(const Changes& changes) {
    for (const Change& change : changes) {
      if (change.several) continue;
      if (auto item = Try({&change})) return item;
    }
    return {};
  }
  // The most of each kind, from the first kind on, until it fits, without kinds that the run cannot
  // have; then as little as still fits, of the last kinds first.
  std::optional<std::string> Combined(const std::vector<const Changes*>& kinds) {
    Together made;
    std::vector<const Changes*> of;
    std::optional<std::string> item;
    for (auto kind = kinds.begin(); kind != kinds.end() && !item; ++kind) {
      if ((*kind)->empty()) continue;
      made.push_back(&(*kind)->back());
      of.push_back(*kind);
      if (!Of(made).possible) {
        made.pop_back();
        of.pop_back();
        continue;
      }
      item = Try(made);
    }
    if (!item) return {};
    for (size_t k = made.size(); k-- > 0;) {
      Together without = made;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(k));
      if (auto less = Try(without)) {
        made = std::move(without);
        item = std::move(less);
        continue;
      }
      for (const Change& change : *of[k]) {
        made[k] = &change;
        if (auto less = Try(made)) {
          item = std::move(less);
          break;
        }
      }
    }
    return item;
  }

 private:
  struct Trial {
    bool possible = false;  // otherwise there is nothing else
    std::string options, costs;
    MemoryPlan plan;
  };

  const Trial& Of(const Together& changes) {
    const auto [it, is_new] = trials_.try_emplace(changes);
    if (is_new) Plan(changes, &it->second);
    return it->second;
  }
  void Plan(const Together& changes, Trial* trial) {
    if (CpuSeconds() >= end_) {
      ended_ = true;
      return;
    }
    RunSetup changed = setup_;
    int64_t gpus = 0;
    for (const Change* change : changes) {
      change->apply(changed.config);
      trial->costs += "; " + change->cost;
      gpus = std::max(gpus, change->gpus);
    }
    if (gpus > 0) changed.data_ranks = gpus;
    try {
      SettlePlan(changed);
      if (!SettleMicroBatches(setup_, changed) || BrokenRule(FactsOf(changed)) != nullptr) return;
      trial->options = ArgumentsOf(setup_.config, changed.config);
      if (gpus > 0) trial->options += fmt::format(" on {} GPUs", gpus);
      trial->plan = PlanMemory(changed);
      trial->possible = true;
    } catch (const ArgumentError&) {  // as when ranks cannot share the micro-batches
    } catch (const InputError&) {
      // As when they do not fill the rounds of a pipeline.
    }
  }

  static double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

  const RunSetup& setup_;
  const ByteFormat format_;
  const double end_;
  bool ended_ = false;
  const MemoryAim* aim_ = nullptr;
  std::map<Together, Trial> trials_;
};

// Where what was `tried` is not enough.
std::string SmallerModel(const RunSetup& setup, const std::vector<std::string_view>& tried) {
  const GptConfig& m = setup.model;
  // The token embedding, and the head if it is separate.
  const int64_t vocabulary = m.vocab_size * m.n_embd * (m.tie_embeddings ? 1 : 2);
  const int64_t blocks = 12 * m.n_layer * m.n_embd * m.n_embd;
  const std::string what =
      vocabulary > blocks
          ? fmt::format("model.vocab_size (now {})", m.vocab_size)
          : fmt::format("model.n_layer (now {}) or model.n_embd (now {})", m.n_layer, m.n_embd);
  const std::string_view experts = m.mixture.n_expert > 0 ? ", parallel.ep" : "";
  return fmt::format(
      "None of these is enough, nor are all of them together: {}. Split layers and sequences "
      "across more devices, by parallel.pp, parallel.tp, parallel.cp{}, or make the model smaller, "
      "by {}, or its windows, by model.block_size (now {})",
      fmt::join(tried, ", "), experts, what, setup.window());
}

}  // namespace

void SettlePlan(RunSetup& setup) {
  setup.model.recompute = ParseRecompute(setup.config.train.recompute);
  setup.model.offload = ParseOffload(setup.config.train.offload);
  SettleLossChunk(setup);
}

std::string ArgumentsOf(const RunConfig& before, const RunConfig& after) {
  std::string s;
  for (const OptionDifference& option : Difference(before, after)) {
    if (option.key == "train.loss_chunk") continue;
    std::string value = option.b;
    std::erase(value, '"');
    s += StrCat(s.empty() ? "--" : " --", option.key, "=", value);
  }
  return s;
}

std::string MemoryAdvice(const RunSetup& setup, const std::vector<MemoryAim>& aims,
                         ByteFormat format, double seconds) {
  Trials trials(setup, format, seconds);
  const Changes batch = SmallerBatches(setup), recompute = Recomputations(setup),
                bits = SixteenBits(setup);
  const Changes offload = Offloads(setup);
  // Compressed gradients are not for shards.
  const bool can_shard = setup.config.dist.compress == "none";
  const Changes shards = can_shard ? Shards(setup) : Changes();
  // Where layers or sequences are split across ranks, a data rank is several GPUs.
  const ParallelOptions& parallel = setup.config.parallel;
  const bool rank_is_gpu = parallel.pp * parallel.tp * parallel.cp == 1;
  const Changes more = can_shard && rank_is_gpu ? MoreGpus(setup) : Changes();
  const Changes eager = WithoutGraphs(setup);
  const std::vector<const Changes*> same = {&eager, &batch, &recompute, &shards, &offload};
  std::vector<std::string> items;
  const auto add = [&](std::optional<std::string> item) {
    if (item) items.push_back(std::move(*item));
  };
  for (const MemoryAim& aim : aims) {
    trials.Aim(aim);
    for (const Changes* kind : same) add(trials.First(*kind));
    if (items.empty()) add(trials.Combined(same));
    const bool enough = !items.empty();  // neither more GPUs nor other numbers are needed
    for (const Changes* kind : {&more, &bits}) {
      if (enough || kind->empty()) continue;
      std::vector<const Changes*> kinds = same;
      kinds.push_back(kind);
      add(trials.Combined(kinds));
    }
    if (!items.empty()) break;
  }
  const std::string shares = shards.empty() ? "" : NoteOnShares(setup);
  const std::string ended =
      trials.ended() ? fmt::format(". The search was ended after {:.0f} s", seconds) : "";
  if (!items.empty()) {
    return fmt::format("What would fit: {}{}{}", fmt::join(items, "; "), ended, shares);
  }
  if (trials.ended()) return "Nothing was found that would fit" + ended + shares;
  std::vector<std::string_view> tried = {"recomputation"};
  const bool has_shards = shares.empty() && !(shards.empty() && more.empty());
  for (const auto& [made, name] : {std::pair(!batch.empty(), "smaller micro-batches"),
                                   {has_shards, "sharding"},
                                   {!offload.empty(), "offload"},
                                   {!bits.empty(), "16 bits throughout"}}) {
    if (made) tried.push_back(name);
  }
  return SmallerModel(setup, tried) + shares;
}

}  // namespace lockstep::models
