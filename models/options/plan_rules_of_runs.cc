#include <algorithm>

#include "core/error.h"
#include "models/options/plan_rules.h"

namespace lockstep::models {
namespace {

using Facts = PlanFacts;

std::string NeedsOrderedSum(const char* virtual_key, int64_t parts, const char* key,
                            int64_t ranks) {
  return StrCat(virtual_key, " = ", parts, " with ", key, " = ", ranks,
                " is for dist.reduction = \"ordered\": add that, or leave ", virtual_key, " out");
}

int64_t ShardsOf(const Facts& f) {
  const int64_t ranks = f.config.parallel.shard_ranks;
  return ranks > 0 ? ranks : f.data_ranks;
}

bool IsSharded(const Facts& f) { return f.config.parallel.shard != "none" && f.data_ranks > 1; }

bool OtherAxesTakeAllRanks(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  return f.data_ranks == 1 && (p.pp > 1 || p.tp > 1 || p.cp > 1);
}

constexpr PlanRule kRules[] = {
    {"bf16 gradients of one process",
     {"train.grad_dtype"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const std::string& dtype = f.config.train.grad_dtype;
       if (dtype == "fp32" || f.processes == 1) return "";
       return StrCat("train.grad_dtype = \"", dtype,
                     "\" is for a single process, and this run has ", f.processes,
                     " ranks, which sum gradients in fp32: leave train.grad_dtype out");
     }},
    {"bf16 gradients of few sums",
     {"train.grad_dtype", "train.batch_size", "train.global_batch_size", "train.grad_accum"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const std::string& dtype = f.config.train.grad_dtype;
       if (dtype == "fp32" || f.micro_batches <= kMostSumsInBf16) return "";
       return StrCat(
           "train.grad_dtype = \"", dtype, "\" rounds the sum of gradients after each of the ",
           f.micro_batches, " micro-batches of a step, and of more than ", kMostSumsInBf16,
           " such sums too much is lost: leave train.grad_dtype out, or use a larger ",
           "train.batch_size, or a smaller train.global_batch_size or train.grad_accum, for ",
           "at most ", kMostSumsInBf16, " micro-batches");
     }},
    // Elsewhere workers have different weights.
    {"runs have whole rounds",
     {"dist.outer_every", "train.steps", "train.epochs", "train.tokens_per_parameter",
      "train.eval_every", "train.sample_every", "checkpoint.every", "eval.every"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!f.has_rounds()) return "";
       const RunConfig& c = f.config;
       const int64_t round = c.dist.outer_every;
       for (const auto& [key, length] :
            {std::pair("train.epochs", c.train.epochs),
             {"train.tokens_per_parameter", c.train.tokens_per_parameter}}) {
         if (length == 0) continue;
         return StrCat(
             f.describe(key),
             ": with {dist.outer_every}, a run has whole rounds: use train.steps, a multiple of ",
             round, ", instead");
       }
       std::string wrong, instead;
       for (const auto& [key, steps] : {std::pair("train.steps", c.train.steps),
                                        {"train.eval_every", c.train.eval_every},
                                        {"train.sample_every", c.train.sample_every},
                                        {"checkpoint.every", c.checkpoint.every},
                                        {"eval.every", c.eval.every}}) {
         if (steps % round == 0) continue;
         wrong += StrCat(wrong.empty() ? "" : ", ", f.describe(key));
         instead += StrCat(" --", key, "=", (steps / round + 1) * round);
       }
       if (wrong.empty()) return "";
       return StrCat(
           "{dist.outer_every}: workers have the same weights only at the ends of rounds, where "
           "runs end, evaluate, sample and save, and that many steps do not divide ",
           wrong, ": use", instead);
     }},
    {"workers balance by losses",
     {"dist.outer_every"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const ModelOptions& m = f.config.model;
       if (!f.has_rounds() || m.n_expert == 0 || m.router != "sigmoid" || m.bias_rate == 0)
         return "";
       return "{dist.outer_every} brings weights together, and not the biases that balance a "
              "router of sigmoid scores: use model.bias_rate = 0, or model.router = \"softmax\"";
     }},
    {"frozen ties are sharded once",
     {"parallel.schedule", "parallel.shard", "lora.rank", "lora.init_from"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const LoraOptions& lora = f.config.lora;
       const bool adapters = lora.rank > 0 || !lora.init_from.empty();
       if (!adapters || !f.config.model.tie_embeddings || p.schedule != "zbv" || p.pp == 1 ||
           p.shard == "none") {
         return "";
       }
       return "{parallel.schedule} puts embedding and head on one rank, and their weight, which is "
              "tied and, with adapters, frozen, cannot be cut twice by {parallel.shard}: use "
              "parallel.schedule=1f1b or parallel.shard=none";
     }},
    {"shard_ranks divides the ranks",
     {"parallel.shard_ranks", "parallel.shard"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!IsSharded(f) || f.data_ranks % ShardsOf(f) == 0) return "";
       return StrCat("parallel.shard_ranks = ", ShardsOf(f), " does not divide the ", f.data_ranks,
                     " ranks: use a divisor, or 0, all of them");
     }},
    {"shards are not compressed",
     {"dist.compress", "parallel.shard"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!IsSharded(f) || f.config.dist.compress == "none") return "";
       return "dist.compress is for gradients that every rank keeps: use dist.compress = "
              "\"none\" with parallel.shard";
     }},
    {"virtual.tp is for ordered sums",
     {"virtual.tp", "parallel.tp", "dist.reduction"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (f.config.dist.reduction == "ordered" || p.tensor_parts() == p.tp) return "";
       return NeedsOrderedSum("virtual.tp", p.tensor_parts(), "parallel.tp", p.tp);
     }},
    {"parts divide the window",
     {"virtual.tp", "parallel.tp", "model.block_size"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t parts = p.tensor_parts(), window = f.config.model.block_size;
       if (window % parts == 0) return "";
       return StrCat(
           "the ", parts,
           " parts of virtual.tp (or parallel.tp) do not divide model.block_size = ", window,
           ": use model.block_size = ", (window / parts + 1) * parts, ", or fewer parts");
     }},
    {"tp divides the heads",
     {"parallel.tp", "model.n_head"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t tp = p.tp, heads = f.config.model.n_head;
       if (heads % tp == 0) return "";
       return StrCat("parallel.tp = ", tp, " does not divide the ", heads,
                     " heads (model.n_head): use a divisor of them");
     }},
    {"tp fits the heads of keys",
     {"parallel.tp", "model.n_kv_head", "model.n_head"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const ModelOptions& m = f.config.model;
       const int64_t tp = p.tp, keys = m.n_kv_head > 0 ? m.n_kv_head : m.n_head;
       if (keys % tp == 0 || tp % keys == 0) return "";
       return StrCat(
           "parallel.tp = ", tp, " neither divides the ", keys,
           " heads of keys and values (model.n_kv_head) nor is a multiple of them: use one ",
           "that does");
     }},
    {"parts divide the experts",
     {"virtual.tp", "parallel.tp", "model.n_expert"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t parts = p.tensor_parts(), experts = f.config.model.n_expert;
       if (experts % parts == 0) return "";
       return StrCat("the ", parts, " parts of virtual.tp (or parallel.tp) do not divide the ",
                     experts, " experts (model.n_expert): use a divisor of them");
     }},
    {"virtual.cp is for ordered sums",
     {"virtual.cp", "parallel.cp", "dist.reduction"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (f.config.dist.reduction == "ordered" || p.context_pairs() == p.cp) return "";
       return NeedsOrderedSum("virtual.cp", p.context_pairs(), "parallel.cp", p.cp);
     }},
    {"chunks divide the window",
     {"virtual.cp", "parallel.cp", "virtual.tp", "parallel.tp", "model.block_size"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t pairs = p.context_pairs(), parts = p.tensor_parts(), all = 2 * pairs * parts;
       const int64_t window = f.config.model.block_size;
       if (pairs == 1 || window % all == 0) return "";
       return StrCat(
           "the ", 2 * pairs, " chunks of a sequence, two for each of virtual.cp = ", pairs,
           " (or parallel.cp)",
           parts > 1 ? StrCat(", with ", parts, " parts (virtual.tp or parallel.tp) in each") : "",
           ", must divide {model.block_size}: use ", (window / all + 1) * all, ", or fewer chunks");
     }},
    {"ep needs experts",
     {"parallel.ep", "model.n_expert"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.ep == 1 || f.config.model.n_expert > 0) return "";
       return "{parallel.ep} splits experts across ranks, and the model has none: add "
              "model.n_expert = 8, or leave it out";
     }},
    {"ep divides the experts",
     {"parallel.ep", "parallel.tp", "model.n_expert"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t experts = f.config.model.n_expert;
       if (p.ep == 1 || experts % (p.ep * p.tp) == 0) return "";
       return StrCat("{parallel.ep}", p.tp > 1 ? StrCat(" times parallel.tp = ", p.tp) : "",
                     " does not divide the ", experts,
                     " experts (model.n_expert): use a divisor of them");
     }},
    {"ep divides the ranks",
     {"parallel.ep", "parallel.pp", "parallel.tp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (f.data_ranks % p.data_ranks_of_experts() == 0) return "";
       const int64_t ranks = f.data_ranks * p.cp, all = p.pp * p.tp * std::max(p.ep, p.cp);
       return StrCat("{parallel.ep} does not divide the ", ranks, ranks == 1 ? " rank" : " ranks",
                     p.pp * p.tp == 1 ? " of this run"
                                      : " that parallel.pp and parallel.tp leave for other samples",
                     ": start a multiple of ", all, " processes, as with --nproc=", all);
     }},
    // Other ranks' micro-batches are rows of this one's experts.
    {"ep needs equal micro-batches",
     {"parallel.ep", "train.grad_accum", "train.global_batch_size"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.data_ranks_of_experts() == 1 || f.micro_batches % f.data_ranks == 0) {
         return "";
       }
       return StrCat("{parallel.ep} needs equally many micro-batches on all ", f.data_ranks,
                     " ranks, and a step has ", f.micro_batches, ": use a multiple of ",
                     f.data_ranks, ", by train.grad_accum or train.global_batch_size");
     }},
    {"compression needs data ranks",
     {"dist.compress", "parallel.pp", "parallel.cp", "parallel.tp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!OtherAxesTakeAllRanks(f) || f.config.dist.compress == "none") return "";
       if (SumsContextWithData(f.config)) return "";
       return "dist.compress is for gradients that data-parallel ranks sum, and parallel.pp, "
              "parallel.cp and parallel.tp leave only one such rank: leave dist.compress out";
     }},
    {"elastic runs keep their samples",
     {"dist.elastic", "train.global_batch_size"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const TrainOptions& t = f.config.train;
       if (!f.config.dist.elastic || t.global_batch_size > 0) return "";
       return StrCat("dist.elastic changes the number of ranks, and a step must have the same ",
                     "samples at any: add train.global_batch_size = ",
                     f.micro_batches * t.batch_size, ", which is what these ranks make");
     }},
    {"elastic runs have two copies",
     {"dist.elastic", "parallel.pp", "parallel.tp", "parallel.cp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t of_a_copy = p.pp * p.tp * p.cp;
       if (!f.config.dist.elastic || of_a_copy == 1 || f.data_ranks > 1 || f.goes_on) return "";
       return StrCat(
           "dist.elastic goes on with the copies of the model that are whole when a rank "
           "ends, and this plan has only one, of ",
           of_a_copy, " ranks: start ", 2 * of_a_copy,
           " processes or more, or leave dist.elastic out");
     }},
    {"shards need data ranks",
     {"parallel.shard", "parallel.pp", "parallel.cp", "parallel.tp"},
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!OtherAxesTakeAllRanks(f) || p.shard == "none" || f.goes_on) return "";
       return StrCat(
           "parallel.shard = \"", p.shard,
           "\" shards weights across data-parallel ranks, and parallel.pp, parallel.cp and ",
           "parallel.tp leave only one such rank, so it would do nothing: leave it out, or ",
           "start ", 2 * p.pp * p.cp * p.tp, " processes or more");
     }},
};

}  // namespace

std::span<const PlanRule> PlanRulesOfRuns() { return kRules; }

}  // namespace lockstep::models
