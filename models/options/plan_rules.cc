#include "models/options/plan_rules.h"

#include <algorithm>

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

bool HasRounds(const Facts& f) { return f.config.dist.outer_every > 0; }

constexpr bool kOfOptions = false, kOfRun = true;

constexpr PlanRule kRules[] = {
    {"virtual.cp",
     {"virtual.cp", "parallel.cp"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       return AreShares(p.context_pairs(), p.cp) ? ""
                                                 : NotShares(f, "virtual.cp", "parallel.cp", p.cp);
     }},
    {"virtual.tp",
     {"virtual.tp", "parallel.tp"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       return AreShares(p.tensor_parts(), p.tp) ? ""
                                                : NotShares(f, "virtual.tp", "parallel.tp", p.tp);
     }},
    {"ep is a power of two",
     {"parallel.ep"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (IsPowerOfTwo(p.ep)) return "";
       return StrCat(
           f.describe("parallel.ep"),
           " must be a power of two, since the gradients of the ranks' samples are added in ",
           "pairs: use parallel.ep = 2, 4 or 8");
     }},
    {"ep fits cp",
     {"parallel.ep", "parallel.cp"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.ep % p.cp == 0 || p.cp % p.ep == 0) return "";
       return StrCat(
           f.describe("parallel.ep"), " neither divides ", f.describe("parallel.cp"),
           " nor is a multiple of it, and the ranks that compute a sequence are the first to ",
           "split experts: use powers of two");
     }},
    {"schedule needs pp",
     {"parallel.schedule", "parallel.pp"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.pp > 1 || p.schedule == ParallelOptions().schedule) return "";
       return StrCat(f.describe("parallel.schedule"),
                     " does nothing without a pipeline: add parallel.pp = 2 or more, or leave ",
                     "parallel.schedule out");
     }},
    {"pp keeps weights",
     {"parallel.reshard_after_forward", "parallel.pp"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.pp == 1 || p.reshard_after_forward) return "";
       return StrCat(
           f.describe("parallel.reshard_after_forward"),
           " does nothing with parallel.pp, whose stages keep their weights for a step: leave ",
           "parallel.reshard_after_forward out");
     }},
    {"shard_ranks needs shard",
     {"parallel.shard_ranks", "parallel.shard"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.shard != "none" || p.shard_ranks == 0) return "";
       return StrCat(
           f.describe("parallel.shard_ranks"),
           " does nothing without parallel.shard = \"full\", \"gradients\" or \"optimizer\": ",
           "add one of them, or leave parallel.shard_ranks out");
     }},
    {"shards of one rank",
     {"parallel.shard_ranks"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.shard_ranks != 1) return "";
       return StrCat(f.describe("parallel.shard_ranks"),
                     " shards nothing, since each rank would have a whole copy: use 2 or more, or ",
                     "parallel.shard = \"none\"");
     }},
    {"reshard needs full",
     {"parallel.reshard_after_forward", "parallel.shard"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.shard == "full" || p.reshard_after_forward) return "";
       return StrCat(f.describe("parallel.reshard_after_forward"),
                     " does nothing without parallel.shard = \"full\": add that, or leave ",
                     "parallel.reshard_after_forward out");
     }},
    {"ordered sums are exact",
     {"dist.reduction", "dist.compress"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const DistOptions& d = f.config.dist;
       if (d.reduction != "ordered" || d.compress == "none") return "";
       return StrCat(
           f.describe("dist.compress"),
           " rounds what ranks send, so the bits would depend on the number of ranks, which ",
           f.describe("dist.reduction"),
           " rules out: use dist.compress = \"none\", or dist.reduction = \"fast\"");
     }},
    {"workers have whole models",
     {"dist.outer_every", "parallel.shard", "parallel.tp", "parallel.pp", "parallel.cp",
      "parallel.ep"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!HasRounds(f)) return "";
       for (const auto& [key, splits] : {std::pair("parallel.shard", p.shard != "none"),
                                         {"parallel.tp", p.tp > 1},
                                         {"parallel.pp", p.pp > 1},
                                         {"parallel.cp", p.cp > 1},
                                         {"parallel.ep", p.ep > 1}}) {
         if (!splits) continue;
         return StrCat(f.describe("dist.outer_every"), " makes each rank a worker with a model of ",
                       "its own, which ", f.describe(key), " would split: leave ", key,
                       " out, or dist.outer_every");
       }
       return "";
     }},
    {"workers sum no gradients",
     {"dist.outer_every", "dist.reduction", "dist.compress"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const DistOptions& d = f.config.dist;
       if (!HasRounds(f)) return "";
       if (d.compress != "none") {
         return StrCat(f.describe("dist.compress"), " is for the gradients of every step, which ",
                       f.describe("dist.outer_every"),
                       " does not send: use dist.outer_dtype = \"bf16\"");
       }
       if (d.reduction == "fast") return "";
       return StrCat(f.describe("dist.reduction"),
                     " promises the same bits at any number of ranks, and with ",
                     f.describe("dist.outer_every"),
                     " they depend on it: leave dist.reduction out; ",
                     "what workers send is summed in a fixed order in any case");
     }},
    {"workers keep all on their device",
     {"dist.outer_every", "train.offload"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!HasRounds(f) || f.config.train.offload == "none") return "";
       return StrCat(f.describe("train.offload"), " is not supported with ",
                     f.describe("dist.outer_every"), ": leave train.offload out");
     }},
    {"workers keep no averages",
     {"dist.outer_every", "optim.ema"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!HasRounds(f) || f.config.optim.ema == 0) return "";
       return StrCat(f.describe("optim.ema"), " is not supported with ",
                     f.describe("dist.outer_every"),
                     ", whose outer optimizer takes the weights elsewhere: leave optim.ema out");
     }},
    {"preferences need whole answers",
     {"train.objective", "parallel.tp", "virtual.tp", "parallel.pp", "parallel.cp", "virtual.cp"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (f.config.train.objective != "dpo") return "";
       for (const auto& [key, size] : {std::pair("parallel.tp", p.tp),
                                       {"virtual.tp", p.virtual_tp},
                                       {"parallel.pp", p.pp},
                                       {"parallel.cp", p.cp},
                                       {"virtual.cp", p.virtual_cp}}) {
         if (size <= 1) continue;
         return StrCat(
             f.describe("train.objective"), " with ", f.describe(key),
             ": preferences need whole answers on each rank: use data-parallel ranks, with ",
             "parallel.shard where memory is short");
       }
       return "";
     }},
    {"bf16 gradients of one process",
     {"train.grad_dtype"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const std::string& dtype = f.config.train.grad_dtype;
       if (dtype == "fp32" || f.processes == 1) return "";
       return StrCat("train.grad_dtype = \"", dtype,
                     "\" is for a single process, and this run has ", f.processes,
                     " ranks, which sum gradients in fp32: leave train.grad_dtype out");
     }},
    {"bf16 gradients of few sums",
     {"train.grad_dtype", "train.batch_size", "train.global_batch_size", "train.grad_accum"},
     kOfRun,
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
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!HasRounds(f)) return "";
       const RunConfig& c = f.config;
       const int64_t round = c.dist.outer_every;
       for (const auto& [key, length] :
            {std::pair("train.epochs", c.train.epochs),
             {"train.tokens_per_parameter", c.train.tokens_per_parameter}}) {
         if (length == 0) continue;
         return StrCat(f.describe(key), ": with ", f.describe("dist.outer_every"),
                       ", a run has whole rounds: use train.steps, a multiple of ", round,
                       ", instead");
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
       return StrCat(f.describe("dist.outer_every"), ": workers have the same weights only at the ",
                     "ends of rounds, where runs end, evaluate, sample and save, and that many ",
                     "steps do not divide ", wrong, ": use", instead);
     }},
    {"workers balance by losses",
     {"dist.outer_every"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const ModelOptions& m = f.config.model;
       if (!HasRounds(f) || m.n_expert == 0 || m.router != "sigmoid" || m.bias_rate == 0) return "";
       return StrCat(f.describe("dist.outer_every"),
                     " brings weights together, and not the biases ",
                     "that balance a router of sigmoid scores: use model.bias_rate = 0, or ",
                     "model.router = \"softmax\"");
     }},
    {"four bits are not cut",
     {"lora.base", "parallel.tp", "virtual.tp"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!f.config.lora.quantizes() || (p.tp == 1 && p.tensor_parts() == 1)) return "";
       return StrCat(f.describe("lora.base"),
                     " quantises matrices in blocks that tensor parallelism (",
                     f.describe(p.tp > 1 ? "parallel.tp" : "virtual.tp"),
                     ") cannot cut: use data parallelism or a pipeline");
     }},
    {"frozen ties are sharded once",
     {"parallel.schedule", "parallel.shard", "lora.rank", "lora.init_from"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const LoraOptions& lora = f.config.lora;
       const bool adapters = lora.rank > 0 || !lora.init_from.empty();
       if (!adapters || !f.config.model.tie_embeddings || p.schedule != "zbv" || p.pp == 1 ||
           p.shard == "none") {
         return "";
       }
       return StrCat(
           f.describe("parallel.schedule"),
           " puts embedding and head on one rank, and their weight, which is tied and, with ",
           "adapters, frozen, cannot be cut twice by ", f.describe("parallel.shard"),
           ": use parallel.schedule=1f1b or parallel.shard=none");
     }},
    {"shard_ranks divides the ranks",
     {"parallel.shard_ranks", "parallel.shard"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!IsSharded(f) || f.data_ranks % ShardsOf(f) == 0) return "";
       return StrCat("parallel.shard_ranks = ", ShardsOf(f), " does not divide the ", f.data_ranks,
                     " ranks: use a divisor, or 0, all of them");
     }},
    {"shards are not compressed",
     {"dist.compress", "parallel.shard"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!IsSharded(f) || f.config.dist.compress == "none") return "";
       return "dist.compress is for gradients that every rank keeps: use dist.compress = "
              "\"none\" with parallel.shard";
     }},
    {"virtual.tp is for ordered sums",
     {"virtual.tp", "parallel.tp", "dist.reduction"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (f.config.dist.reduction == "ordered" || p.tensor_parts() == p.tp) return "";
       return NeedsOrderedSum("virtual.tp", p.tensor_parts(), "parallel.tp", p.tp);
     }},
    {"parts divide the window",
     {"virtual.tp", "parallel.tp", "model.block_size"},
     kOfRun,
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
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t tp = p.tp, heads = f.config.model.n_head;
       if (heads % tp == 0) return "";
       return StrCat("parallel.tp = ", tp, " does not divide the ", heads,
                     " heads (model.n_head): use a divisor of them");
     }},
    {"tp fits the heads of keys",
     {"parallel.tp", "model.n_kv_head", "model.n_head"},
     kOfRun,
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
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t parts = p.tensor_parts(), experts = f.config.model.n_expert;
       if (experts % parts == 0) return "";
       return StrCat("the ", parts, " parts of virtual.tp (or parallel.tp) do not divide the ",
                     experts, " experts (model.n_expert): use a divisor of them");
     }},
    {"virtual.cp is for ordered sums",
     {"virtual.cp", "parallel.cp", "dist.reduction"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (f.config.dist.reduction == "ordered" || p.context_pairs() == p.cp) return "";
       return NeedsOrderedSum("virtual.cp", p.context_pairs(), "parallel.cp", p.cp);
     }},
    {"chunks divide the window",
     {"virtual.cp", "parallel.cp", "virtual.tp", "parallel.tp", "model.block_size"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t pairs = p.context_pairs(), parts = p.tensor_parts(), all = 2 * pairs * parts;
       const int64_t window = f.config.model.block_size;
       if (pairs == 1 || window % all == 0) return "";
       return StrCat(
           "the ", 2 * pairs, " chunks of a sequence, two for each of virtual.cp = ", pairs,
           " (or parallel.cp)",
           parts > 1 ? StrCat(", with ", parts, " parts (virtual.tp or parallel.tp) in each") : "",
           ", must divide ", f.describe("model.block_size"), ": use ", (window / all + 1) * all,
           ", or fewer chunks");
     }},
    {"ep needs experts",
     {"parallel.ep", "model.n_expert"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.ep == 1 || f.config.model.n_expert > 0) return "";
       return StrCat(
           f.describe("parallel.ep"),
           " splits experts across ranks, and the model has none: add model.n_expert = 8, or ",
           "leave it out");
     }},
    {"ep divides the experts",
     {"parallel.ep", "parallel.tp", "model.n_expert"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const int64_t experts = f.config.model.n_expert;
       if (p.ep == 1 || experts % (p.ep * p.tp) == 0) return "";
       return StrCat(f.describe("parallel.ep"),
                     p.tp > 1 ? StrCat(" times parallel.tp = ", p.tp) : "", " does not divide the ",
                     experts, " experts (model.n_expert): use a divisor of them");
     }},
    {"ep divides the ranks",
     {"parallel.ep", "parallel.pp", "parallel.tp"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (f.data_ranks % p.data_ranks_of_experts() == 0) return "";
       const int64_t ranks = f.data_ranks * p.cp, all = p.pp * p.tp * std::max(p.ep, p.cp);
       return StrCat(f.describe("parallel.ep"), " does not divide the ", ranks,
                     ranks == 1 ? " rank" : " ranks",
                     p.pp * p.tp == 1 ? " of this run"
                                      : " that parallel.pp and parallel.tp leave for other samples",
                     ": start a multiple of ", all, " processes, as with --nproc=", all);
     }},
    // Other ranks' micro-batches are rows of this one's experts.
    {"ep needs equal micro-batches",
     {"parallel.ep", "train.grad_accum", "train.global_batch_size"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (p.data_ranks_of_experts() == 1 || f.micro_batches % f.data_ranks == 0) {
         return "";
       }
       return StrCat(f.describe("parallel.ep"), " needs equally many micro-batches on all ",
                     f.data_ranks, " ranks, and a step has ", f.micro_batches,
                     ": use a multiple of ", f.data_ranks,
                     ", by train.grad_accum or train.global_batch_size");
     }},
    {"compression needs data ranks",
     {"dist.compress", "parallel.pp", "parallel.cp", "parallel.tp"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!OtherAxesTakeAllRanks(f) || f.config.dist.compress == "none") return "";
       if (SumsContextWithData(f.config)) return "";
       return "dist.compress is for gradients that data-parallel ranks sum, and parallel.pp, "
              "parallel.cp and parallel.tp leave only one such rank: leave dist.compress out";
     }},
    {"elastic runs keep their samples",
     {"dist.elastic", "train.global_batch_size"},
     kOfRun,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const TrainOptions& t = f.config.train;
       if (!f.config.dist.elastic || t.global_batch_size > 0) return "";
       return StrCat("dist.elastic changes the number of ranks, and a step must have the same ",
                     "samples at any: add train.global_batch_size = ",
                     f.micro_batches * t.batch_size, ", which is what these ranks make");
     }},
    {"elastic runs are not traced",
     {"dist.elastic", "log.trace"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions&) -> std::string {
       if (!f.config.dist.elastic || f.config.log.trace.empty()) return "";
       return "dist.elastic goes on with another rank 0 when that ends, which a trace cannot: "
              "leave "
              "log.trace out, or trace some steps without dist.elastic";
     }},
    {"elastic workers are not built",
     {"dist.elastic", "dist.outer_every"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!f.config.dist.elastic || f.config.dist.outer_every == 0) return "";
       return "dist.elastic goes on from the memory of ranks that have the same weights, and "
              "between "
              "two meetings (dist.outer_every) none has: leave one of them out";
     }},
    {"the clock of one world",
     {"train.time_budget", "dist.outer_every", "dist.elastic"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const bool elastic = f.config.dist.elastic;
       if (f.config.train.time_budget.empty() || (!elastic && !HasRounds(f))) return "";
       const char* const other = elastic ? "dist.elastic" : "dist.outer_every";
       return StrCat(f.describe("train.time_budget"),
                     " lets rank 0 settle after any step how many ", "the run has, and with ",
                     f.describe(other),
                     elastic ? " another rank may take its place" : " ranks meet only after rounds",
                     ": leave ", other, " out, or use train.steps");
     }},
    {"elastic experts are not built",
     {"dist.elastic", "parallel.ep"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       if (!f.config.dist.elastic || p.ep == 1) return "";
       return StrCat("dist.elastic goes on with fewer ranks, and ", f.describe("parallel.ep"),
                     " splits experts across a fixed number of them: leave one of them out, or use "
                     "launch --max_restarts, which goes on from the newest checkpoint");
     }},
    {"elastic adapters are whole",
     {"dist.elastic", "lora.rank", "lora.init_from", "parallel.shard", "parallel.pp", "parallel.tp",
      "parallel.cp"},
     kOfOptions,
     [](const Facts& f, const ParallelOptions& p) -> std::string {
       const LoraOptions& lora = f.config.lora;
       const bool adapters = lora.rank > 0 || !lora.init_from.empty();
       if (!f.config.dist.elastic || !adapters || !DividesCopies(p)) return "";
       return "dist.elastic copies the parts of a divided model after each step, and with adapters "
              "would also copy all the weights that never change: train adapters on ranks that "
              "have the whole model, without parallel.shard, pp, tp and cp, or leave dist.elastic "
              "out";
     }},
    {"elastic runs have two copies",
     {"dist.elastic", "parallel.pp", "parallel.tp", "parallel.cp"},
     kOfRun,
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
     kOfRun,
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

bool SumsContextWithData(const RunConfig& config) {
  const ParallelOptions& p = config.parallel;
  return p.cp > 1 && config.dist.reduction != "ordered" && p.pp == 1 && p.shard == "none" &&
         p.ep == 1;
}

bool DividesCopies(const ParallelOptions& p) {
  return p.shard != "none" || p.pp > 1 || p.tp > 1 || p.cp > 1;
}

std::span<const PlanRule> PlanRules() { return kRules; }

const PlanRule* BrokenRule(const PlanFacts& facts, std::string* why) {
  for (const PlanRule& rule : kRules) {
    if (rule.of_run && !facts.is_run()) continue;
    std::string refusal = rule.refusal(facts, facts.config.parallel);
    if (refusal.empty()) continue;
    if (why != nullptr) *why = std::move(refusal);
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
