#include "models/options/plan_rules.h"

#include <vector>

#include "core/error.h"

namespace lockstep::models {
namespace {

using Facts = PlanFacts;

bool IsPowerOfTwo(int64_t n) { return (n & (n - 1)) == 0; }

// Parts that ranks compute in equal, aligned shares.
bool AreShares(int64_t parts, int64_t ranks) {
  return parts % ranks == 0 && (ranks == 1 || IsPowerOfTwo(parts / ranks));
}

std::string NotShares(const Facts& f, const char* virtual_key, const char* key, int64_t ranks) {
  return StrCat(f.describe(virtual_key), " must be ", key, " = ", ranks,
                " times a power of two, which each rank computes: use ", virtual_key, " = ",
                2 * ranks, ", or leave it out");
}

constexpr PlanRule kRulesOfOptions[] = {
    {"virtual.cp",
     {"virtual.cp", "parallel.cp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       return AreShares(p.context_pairs(), p.cp) ? ""
                                                 : NotShares(f, "virtual.cp", "parallel.cp", p.cp);
     }},
    {"virtual.tp",
     {"virtual.tp", "parallel.tp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       return AreShares(p.tensor_parts(), p.tp) ? ""
                                                : NotShares(f, "virtual.tp", "parallel.tp", p.tp);
     }},
    {"ep is a power of two",
     {"parallel.ep"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (IsPowerOfTwo(p.ep)) return "";
       return "{parallel.ep} must be a power of two, since the gradients of the ranks' samples are "
              "added in pairs: use parallel.ep = 2, 4 or 8";
     }},
    {"ep fits cp",
     {"parallel.ep", "parallel.cp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.ep % p.cp == 0 || p.cp % p.ep == 0) return "";
       return "{parallel.ep} neither divides {parallel.cp} nor is a multiple of it, and the ranks "
              "that compute a sequence are the first to split experts: use powers of two";
     }},
    {"schedule needs pp",
     {"parallel.schedule", "parallel.pp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.pp > 1 || p.schedule == ParallelOptions().schedule) return "";
       return "{parallel.schedule} does nothing without a pipeline: add parallel.pp = 2 or more, "
              "or leave parallel.schedule out";
     }},
    {"pp keeps weights",
     {"parallel.reshard_after_forward", "parallel.pp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.pp == 1 || p.reshard_after_forward) return "";
       return "{parallel.reshard_after_forward} does nothing with parallel.pp, whose stages keep "
              "their weights for a step: leave parallel.reshard_after_forward out";
     }},
    {"shard_ranks needs shard",
     {"parallel.shard_ranks", "parallel.shard"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.shard != "none" || p.shard_ranks == 0) return "";
       return "{parallel.shard_ranks} does nothing without parallel.shard = \"full\", "
              "\"gradients\" or \"optimizer\": add one of them, or leave parallel.shard_ranks out";
     }},
    {"shards of one rank",
     {"parallel.shard_ranks"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.shard_ranks != 1) return "";
       return "{parallel.shard_ranks} shards nothing, since each rank would have a whole copy: use "
              "2 or more, or parallel.shard = \"none\"";
     }},
    {"reshard needs full",
     {"parallel.reshard_after_forward", "parallel.shard"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.shard == "full" || p.reshard_after_forward) return "";
       return "{parallel.reshard_after_forward} does nothing without parallel.shard = \"full\": "
              "add that, or leave parallel.reshard_after_forward out";
     }},
    {"ordered sums are exact",
     {"dist.reduction", "dist.compress"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const DistOptions& d = f.config.dist;
       if (d.reduction != "ordered" || d.compress == "none") return "";
       return "{dist.compress} rounds what ranks send, so the bits would depend on the number of "
              "ranks, which {dist.reduction} rules out: use dist.compress = \"none\", or "
              "dist.reduction = \"fast\"";
     }},
    {"workers have whole models",
     {"dist.outer_every", "parallel.shard", "parallel.tp", "parallel.pp", "parallel.cp",
      "parallel.ep"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!f.has_rounds()) return "";
       for (const auto& [key, splits] : {std::pair("parallel.shard", p.shard != "none"),
                                         {"parallel.tp", p.tp > 1},
                                         {"parallel.pp", p.pp > 1},
                                         {"parallel.cp", p.cp > 1},
                                         {"parallel.ep", p.ep > 1}}) {
         if (!splits) continue;
         return StrCat(
             "{dist.outer_every} makes each rank a worker with a model of its own, which ",
             f.describe(key), " would split: leave ", key, " out, or dist.outer_every");
       }
       return "";
     }},
    {"workers sum no gradients",
     {"dist.outer_every", "dist.reduction", "dist.compress"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const DistOptions& d = f.config.dist;
       if (!f.has_rounds()) return "";
       if (d.compress != "none") {
         return "{dist.compress} is for the gradients of every step, which {dist.outer_every} does "
                "not send: use dist.outer_dtype = \"bf16\"";
       }
       if (d.reduction == "fast") return "";
       return "{dist.reduction} promises the same bits at any number of ranks, and with "
              "{dist.outer_every} they depend on it: leave dist.reduction out; what workers send "
              "is summed in a fixed order in any case";
     }},
    {"workers keep all on their device",
     {"dist.outer_every", "train.offload"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!f.has_rounds() || f.config.train.offload == "none") return "";
       return "{train.offload} is not supported with {dist.outer_every}: leave train.offload out";
     }},
    {"workers keep no averages",
     {"dist.outer_every", "optim.ema"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!f.has_rounds() || f.config.optim.ema == 0) return "";
       return "{optim.ema} is not supported with {dist.outer_every}, whose outer optimizer takes "
              "the weights elsewhere: leave optim.ema out";
     }},
    {"preferences need whole answers",
     {"train.objective", "parallel.tp", "virtual.tp", "parallel.pp", "parallel.cp", "virtual.cp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (f.config.train.objective != "dpo") return "";
       for (const auto& [key, size] : {std::pair("parallel.tp", p.tp),
                                       {"virtual.tp", p.virtual_tp},
                                       {"parallel.pp", p.pp},
                                       {"parallel.cp", p.cp},
                                       {"virtual.cp", p.virtual_cp}}) {
         if (size <= 1) continue;
         return StrCat("{train.objective} with ", f.describe(key),
                       ": preferences need whole answers on each rank: use data-parallel ranks, "
                       "with parallel.shard where memory is short");
       }
       return "";
     }},
    {"elastic runs are not traced",
     {"dist.elastic", "log.trace", "log.fingerprints", "log.ops"},
     [](const Facts& f, const ParallelOptions&) -> std::string {
       const LogOptions& log = f.config.log;
       if (!f.config.dist.elastic) return "";
       for (const auto& [key, set] : {std::pair("log.trace", !log.trace.empty()),
                                      {"log.fingerprints", log.fingerprints > 0},
                                      {"log.ops", !log.ops.empty()}}) {
         if (!set) continue;
         return StrCat("dist.elastic goes on with other ranks when some end, which ",
                       f.describe(key), " cannot follow: leave ", key,
                       " out, or dist.elastic for the steps that it is about");
       }
       return "";
     }},
    {"workers have no weights in common",
     {"log.fingerprints", "log.ops", "dist.outer_every"},
     [](const Facts& f, const ParallelOptions&) -> std::string {
       const LogOptions& log = f.config.log;
       if (!f.has_rounds() || (log.fingerprints == 0 && log.ops.empty())) return "";
       return StrCat(
           f.describe(log.ops.empty() ? "log.fingerprints" : "log.ops"),
           " is for ranks that share one set of weights, and with {dist.outer_every} each rank "
           "trains weights of its own between two meetings: leave one of the two options out");
     }},
    {"elastic workers are not built",
     {"dist.elastic", "dist.outer_every"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!f.config.dist.elastic || f.config.dist.outer_every == 0) return "";
       return "dist.elastic goes on from the memory of ranks that have the same weights, and "
              "between "
              "two meetings (dist.outer_every) none has: leave one of them out";
     }},
    {"the clock of one world",
     {"train.time_budget", "dist.outer_every", "dist.elastic"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const bool elastic = f.config.dist.elastic;
       if (f.config.train.time_budget.empty() || (!elastic && !f.has_rounds())) return "";
       const char* const other = elastic ? "dist.elastic" : "dist.outer_every";
       return StrCat(
           "{train.time_budget} lets rank 0 settle after any step how many the run has, and with ",
           f.describe(other),
           elastic ? " another rank may take its place" : " ranks meet only after rounds",
           ": leave ", other, " out, or use train.steps");
     }},
    {"elastic experts are not built",
     {"dist.elastic", "parallel.ep"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!f.config.dist.elastic || p.ep == 1) return "";
       return "dist.elastic goes on with fewer ranks, and {parallel.ep} splits experts across a "
              "fixed number of them: leave one of them out, or use launch --max_restarts, which "
              "goes on from the newest checkpoint";
     }},
    {"elastic adapters are whole",
     {"dist.elastic", "lora.rank", "lora.init_from", "parallel.shard", "parallel.pp", "parallel.tp",
      "parallel.cp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const LoraOptions& lora = f.config.lora;
       const bool adapters = lora.rank > 0 || !lora.init_from.empty();
       if (!f.config.dist.elastic || !adapters || !DividesCopies(p)) return "";
       return "dist.elastic copies the parts of a divided model after each step, and with adapters "
              "would also copy all the weights that never change: train adapters on ranks that "
              "have the whole model, without parallel.shard, pp, tp and cp, or leave dist.elastic "
              "out";
     }},
};

}  // namespace

bool SumsContextWithData(const RunConfig& config) {
  const ParallelOptions& p = config.parallel;
  return p.cp > 1 && config.dist.reduction != "ordered" && p.pp == 1 && p.shard == "none" &&
         p.ep == 1;
}

bool DividesCopies(const ParallelOptions& p) {
  return p.shard != "none" || p.pp > 1 || p.tp > 1 || p.cp > 1;
}

std::span<const PlanRule> PlanRules() {
  static const std::vector<PlanRule> all = [] {
    std::vector<PlanRule> rules(std::begin(kRulesOfOptions), std::end(kRulesOfOptions));
    for (PlanRule rule : PlanRulesOfRuns()) {
      rule.of_run = true;
      rules.push_back(rule);
    }
    return rules;
  }();
  return all;
}

const PlanRule* BrokenRule(const PlanFacts& facts, std::string* why) {
  for (const PlanRule& rule : PlanRules()) {
    if (rule.of_run && !facts.is_run()) continue;
    const std::string refusal = rule.refusal(facts, facts.config.parallel);
    if (refusal.empty()) continue;
    if (why != nullptr) *why = WithDescriptions(refusal, facts.describe);
    return &rule;
  }
  return nullptr;
}

void CheckPlan(const Options& options, PlanFacts facts) {
  facts.describe = [&](std::string_view key) { return options.Describe(key); };
  std::string why;
  const PlanRule* const rule = BrokenRule(facts, &why);
  if (rule == nullptr) return;
  std::vector<std::string_view> keys(rule->keys.begin(), rule->keys.end());
  std::erase(keys, "");
  options.Fail(keys, why);
}

}  // namespace lockstep::models
