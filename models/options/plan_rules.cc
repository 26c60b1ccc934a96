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

std::string Ranks(int64_t n) { return StrCat(n, n == 1 ? " rank" : " ranks"); }

bool HasPreferences(const RunConfig& c) { return c.train.objective == "dpo"; }

// ---- Sizes ----

std::string VirtualTp(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  return AreShares(p.tensor_parts(), p.tp) ? "" : NotShares(f, "virtual.tp", "parallel.tp", p.tp);
}

std::string VirtualCp(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  return AreShares(p.context_pairs(), p.cp) ? "" : NotShares(f, "virtual.cp", "parallel.cp", p.cp);
}

std::string EpIsAPower(const Facts& f) {
  if (IsPowerOfTwo(f.config.parallel.ep)) return "";
  return StrCat(f.describe("parallel.ep"),
                " must be a power of two, since the gradients of the ranks' samples are added in ",
                "pairs: use parallel.ep = 2, 4 or 8");
}

std::string EpFitsCp(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (p.ep % p.cp == 0 || p.cp % p.ep == 0) return "";
  return StrCat(f.describe("parallel.ep"), " neither divides ", f.describe("parallel.cp"),
                " nor is a multiple of it, and the ranks that compute a sequence are the first to ",
                "split experts: use powers of two");
}

// ---- What has no effect ----

std::string ScheduleNeedsPipeline(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (p.pp > 1 || p.schedule == ParallelOptions().schedule) return "";
  return StrCat(f.describe("parallel.schedule"),
                " does nothing without a pipeline: add parallel.pp = 2 or more, or leave ",
                "parallel.schedule out");
}

std::string PipelinesKeepWeights(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (p.pp == 1 || p.reshard_after_forward) return "";
  return StrCat(
      f.describe("parallel.reshard_after_forward"),
      " does nothing with parallel.pp, whose stages keep their weights for a step: leave ",
      "parallel.reshard_after_forward out");
}

std::string ShardRanksNeedShards(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (p.shard != "none" || p.shard_ranks == 0) return "";
  return StrCat(f.describe("parallel.shard_ranks"),
                " does nothing without parallel.shard = \"full\", \"gradients\" or \"optimizer\": ",
                "add one of them, or leave parallel.shard_ranks out");
}

std::string ShardsOfOneRank(const Facts& f) {
  if (f.config.parallel.shard_ranks != 1) return "";
  return StrCat(f.describe("parallel.shard_ranks"),
                " shards nothing, since each rank would have a whole copy: use 2 or more, or ",
                "parallel.shard = \"none\"");
}

std::string ReshardNeedsFull(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (p.shard == "full" || p.reshard_after_forward) return "";
  return StrCat(f.describe("parallel.reshard_after_forward"),
                " does nothing without parallel.shard = \"full\": add that, or leave ",
                "parallel.reshard_after_forward out");
}

// ---- Sums ----

std::string OrderedSumsAreExact(const Facts& f) {
  const DistOptions& d = f.config.dist;
  if (d.reduction != "ordered" || d.compress == "none") return "";
  return StrCat(f.describe("dist.compress"),
                " rounds what ranks send, so the bits would depend on the number of ranks, which ",
                f.describe("dist.reduction"),
                " rules out: use dist.compress = \"none\", or dist.reduction = \"fast\"");
}

std::string PreferencesNeedWholeAnswers(const Facts& f) {
  if (!HasPreferences(f.config)) return "";
  const ParallelOptions& p = f.config.parallel;
  for (const auto& [key, size] : {std::pair("parallel.tp", p.tp),
                                  {"virtual.tp", p.virtual_tp},
                                  {"parallel.pp", p.pp},
                                  {"parallel.cp", p.cp},
                                  {"virtual.cp", p.virtual_cp}}) {
    if (size <= 1) continue;
    return StrCat(f.describe("train.objective"), " with ", f.describe(key),
                  ": preferences need whole answers on each rank: use data-parallel ranks, with ",
                  "parallel.shard where memory is short");
  }
  return "";
}

std::string Bf16GradientsAreOfOneProcess(const Facts& f) {
  const std::string& dtype = f.config.train.grad_dtype;
  if (dtype == "fp32" || f.processes == 1) return "";
  return StrCat("train.grad_dtype = \"", dtype, "\" is for a single process, and this run has ",
                f.processes, " ranks, which sum gradients in fp32: leave train.grad_dtype out");
}

std::string Bf16GradientsOfFewSums(const Facts& f) {
  const std::string& dtype = f.config.train.grad_dtype;
  if (dtype == "fp32" || f.micro_batches <= kMostSumsInBf16) return "";
  return StrCat("train.grad_dtype = \"", dtype, "\" rounds the sum of gradients after each of the ",
                f.micro_batches, " micro-batches of a step, and of more than ", kMostSumsInBf16,
                " such sums too much is lost: leave train.grad_dtype out, or use a larger ",
                "train.batch_size, or a smaller train.global_batch_size or train.grad_accum, for ",
                "at most ", kMostSumsInBf16, " micro-batches");
}

// ---- Shards ----

int64_t ShardsOf(const Facts& f) {
  const int64_t ranks = f.config.parallel.shard_ranks;
  return ranks > 0 ? ranks : f.data_ranks;
}

bool IsSharded(const Facts& f) { return f.config.parallel.shard != "none" && f.data_ranks > 1; }

std::string ShardRanksDivide(const Facts& f) {
  if (!IsSharded(f) || f.data_ranks % ShardsOf(f) == 0) return "";
  return StrCat("parallel.shard_ranks = ", ShardsOf(f), " does not divide the ", f.data_ranks,
                " ranks: use a divisor, or 0, all of them");
}

std::string ShardsAreNotCompressed(const Facts& f) {
  if (!IsSharded(f) || f.config.dist.compress == "none") return "";
  return "dist.compress is for gradients that every rank keeps: use dist.compress = \"none\" with "
         "parallel.shard";
}

bool OtherAxesTakeAllRanks(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  return f.data_ranks == 1 && (p.pp > 1 || p.tp > 1 || p.cp > 1);
}

std::string CompressionNeedsDataRanks(const Facts& f) {
  if (!OtherAxesTakeAllRanks(f) || f.config.dist.compress == "none") return "";
  if (SumsContextWithData(f.config)) return "";
  return "dist.compress is for gradients that data-parallel ranks sum, and parallel.pp, "
         "parallel.cp and parallel.tp leave only one such rank: leave dist.compress out";
}

std::string ShardsNeedDataRanks(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (!OtherAxesTakeAllRanks(f) || p.shard == "none") return "";
  return StrCat("parallel.shard = \"", p.shard,
                "\" shards weights across data-parallel ranks, and parallel.pp, parallel.cp and ",
                "parallel.tp leave only one such rank, so it would do nothing: leave it out, or ",
                "start ", 2 * p.pp * p.cp * p.tp, " processes or more");
}

std::string OneRankShardsFrozenTiesOnce(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  const LoraOptions& lora = f.config.lora;
  const bool adapters = lora.rank > 0 || !lora.init_from.empty();
  if (!adapters || !f.config.model.tie_embeddings || p.schedule != "zbv" || p.pp == 1 ||
      p.shard == "none") {
    return "";
  }
  return StrCat(f.describe("parallel.schedule"),
                " puts embedding and head on one rank, and their weight, which is tied and, with ",
                "adapters, frozen, cannot be cut twice by ", f.describe("parallel.shard"),
                ": use parallel.schedule=1f1b or parallel.shard=none");
}

// ---- Layers and sequences ----

std::string FourBitsAreNotCut(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (!f.config.lora.quantizes() || (p.tp == 1 && p.tensor_parts() == 1)) return "";
  return StrCat(f.describe("lora.base"), " quantises matrices in blocks that tensor parallelism (",
                f.describe(p.tp > 1 ? "parallel.tp" : "virtual.tp"),
                ") cannot cut: use data parallelism or a pipeline");
}

std::string VirtualTpIsOrdered(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (f.config.dist.reduction == "ordered" || p.tensor_parts() == p.tp) return "";
  return NeedsOrderedSum("virtual.tp", p.tensor_parts(), "parallel.tp", p.tp);
}

std::string VirtualCpIsOrdered(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (f.config.dist.reduction == "ordered" || p.context_pairs() == p.cp) return "";
  return NeedsOrderedSum("virtual.cp", p.context_pairs(), "parallel.cp", p.cp);
}

std::string PartsDivideTheWindow(const Facts& f) {
  const int64_t parts = f.config.parallel.tensor_parts(), window = f.config.model.block_size;
  if (window % parts == 0) return "";
  return StrCat("the ", parts,
                " parts of virtual.tp (or parallel.tp) do not divide model.block_size = ", window,
                ": use model.block_size = ", (window / parts + 1) * parts, ", or fewer parts");
}

std::string TpDividesHeads(const Facts& f) {
  const int64_t tp = f.config.parallel.tp, heads = f.config.model.n_head;
  if (heads % tp == 0) return "";
  return StrCat("parallel.tp = ", tp, " does not divide the ", heads,
                " heads (model.n_head): use a divisor of them");
}

std::string TpFitsKeyHeads(const Facts& f) {
  const ModelOptions& m = f.config.model;
  const int64_t tp = f.config.parallel.tp, keys = m.n_kv_head > 0 ? m.n_kv_head : m.n_head;
  if (keys % tp == 0 || tp % keys == 0) return "";
  return StrCat("parallel.tp = ", tp, " neither divides the ", keys,
                " heads of keys and values (model.n_kv_head) nor is a multiple of them: use one ",
                "that does");
}

std::string PartsDivideExperts(const Facts& f) {
  const int64_t parts = f.config.parallel.tensor_parts(), experts = f.config.model.n_expert;
  if (experts % parts == 0) return "";
  return StrCat("the ", parts, " parts of virtual.tp (or parallel.tp) do not divide the ", experts,
                " experts (model.n_expert): use a divisor of them");
}

std::string ChunksDivideTheWindow(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  const int64_t pairs = p.context_pairs(), parts = p.tensor_parts(), all = 2 * pairs * parts;
  const int64_t window = f.config.model.block_size;
  if (pairs == 1 || window % all == 0) return "";
  return StrCat(
      "the ", 2 * pairs, " chunks of a sequence, two for each of virtual.cp = ", pairs,
      " (or parallel.cp)",
      parts > 1 ? StrCat(", with ", parts, " parts (virtual.tp or parallel.tp) in each") : "",
      ", must divide ", f.describe("model.block_size"), ": use ", (window / all + 1) * all,
      ", or fewer chunks");
}

// ---- Experts ----

std::string EpNeedsExperts(const Facts& f) {
  if (f.config.parallel.ep == 1 || f.config.model.n_expert > 0) return "";
  return StrCat(f.describe("parallel.ep"),
                " splits experts across ranks, and the model has none: add model.n_expert = 8, or ",
                "leave it out");
}

std::string EpDividesExperts(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  const int64_t experts = f.config.model.n_expert;
  if (p.ep == 1 || experts % (p.ep * p.tp) == 0) return "";
  return StrCat(f.describe("parallel.ep"), p.tp > 1 ? StrCat(" times parallel.tp = ", p.tp) : "",
                " does not divide the ", experts,
                " experts (model.n_expert): use a divisor of them");
}

std::string EpDividesRanks(const Facts& f) {
  const ParallelOptions& p = f.config.parallel;
  if (f.data_ranks % p.data_ranks_of_experts() == 0) return "";
  const int64_t all = p.pp * p.tp * std::max(p.ep, p.cp);
  return StrCat(f.describe("parallel.ep"), " does not divide the ", Ranks(f.data_ranks * p.cp),
                p.pp * p.tp == 1 ? " of this run"
                                 : " that parallel.pp and parallel.tp leave for other samples",
                ": start a multiple of ", all, " processes, as with --nproc=", all);
}

// Other ranks' micro-batches are rows of this one's experts.
std::string EpNeedsEqualMicroBatches(const Facts& f) {
  if (f.config.parallel.data_ranks_of_experts() == 1 || f.micro_batches % f.data_ranks == 0) {
    return "";
  }
  return StrCat(f.describe("parallel.ep"), " needs equally many micro-batches on all ",
                f.data_ranks, " ranks, and a step has ", f.micro_batches, ": use a multiple of ",
                f.data_ranks, ", by train.grad_accum or train.global_batch_size");
}

}  // namespace

bool SumsContextWithData(const RunConfig& config) {
  const ParallelOptions& p = config.parallel;
  return p.cp > 1 && config.dist.reduction != "ordered" && p.pp == 1 && p.shard == "none" &&
         p.ep == 1;
}

std::span<const PlanRule> PlanRules() {
  constexpr bool kOfOptions = false, kOfRun = true;
  static const std::vector<PlanRule> rules = {
      {"virtual.cp", {"virtual.cp", "parallel.cp"}, kOfOptions, VirtualCp},
      {"virtual.tp", {"virtual.tp", "parallel.tp"}, kOfOptions, VirtualTp},
      {"ep is a power of two", {"parallel.ep"}, kOfOptions, EpIsAPower},
      {"ep fits cp", {"parallel.ep", "parallel.cp"}, kOfOptions, EpFitsCp},
      {"schedule needs pp",
       {"parallel.schedule", "parallel.pp"},
       kOfOptions,
       ScheduleNeedsPipeline},
      {"pp keeps weights",
       {"parallel.reshard_after_forward", "parallel.pp"},
       kOfOptions,
       PipelinesKeepWeights},
      {"shard_ranks needs shard",
       {"parallel.shard_ranks", "parallel.shard"},
       kOfOptions,
       ShardRanksNeedShards},
      {"shards of one rank", {"parallel.shard_ranks"}, kOfOptions, ShardsOfOneRank},
      {"reshard needs full",
       {"parallel.reshard_after_forward", "parallel.shard"},
       kOfOptions,
       ReshardNeedsFull},
      {"ordered sums are exact",
       {"dist.reduction", "dist.compress"},
       kOfOptions,
       OrderedSumsAreExact},
      {"preferences need whole answers",
       {"train.objective", "parallel.tp", "virtual.tp", "parallel.pp", "parallel.cp", "virtual.cp"},
       kOfOptions,
       PreferencesNeedWholeAnswers},
      {"bf16 gradients of one process", {}, kOfRun, Bf16GradientsAreOfOneProcess},
      {"bf16 gradients of few sums", {}, kOfRun, Bf16GradientsOfFewSums},
      {"four bits are not cut", {"lora.base", "parallel.tp"}, kOfRun, FourBitsAreNotCut},
      {"frozen ties are sharded once",
       {"parallel.schedule", "parallel.shard", "lora.rank"},
       kOfRun,
       OneRankShardsFrozenTiesOnce},
      {"shard_ranks divides the ranks", {}, kOfRun, ShardRanksDivide},
      {"shards are not compressed", {}, kOfRun, ShardsAreNotCompressed},
      {"virtual.tp is for ordered sums", {}, kOfRun, VirtualTpIsOrdered},
      {"parts divide the window", {}, kOfRun, PartsDivideTheWindow},
      {"tp divides the heads", {}, kOfRun, TpDividesHeads},
      {"tp fits the heads of keys", {}, kOfRun, TpFitsKeyHeads},
      {"parts divide the experts", {}, kOfRun, PartsDivideExperts},
      {"virtual.cp is for ordered sums", {}, kOfRun, VirtualCpIsOrdered},
      {"chunks divide the window", {}, kOfRun, ChunksDivideTheWindow},
      {"ep needs experts", {"parallel.ep"}, kOfRun, EpNeedsExperts},
      {"ep divides the experts", {"parallel.ep"}, kOfRun, EpDividesExperts},
      {"ep divides the ranks", {"parallel.ep"}, kOfRun, EpDividesRanks},
      {"ep needs equal micro-batches", {"parallel.ep"}, kOfRun, EpNeedsEqualMicroBatches},
      {"compression needs data ranks", {}, kOfRun, CompressionNeedsDataRanks},
      {"shards need data ranks", {}, kOfRun, ShardsNeedDataRanks},
  };
  return rules;
}

const PlanRule* BrokenRule(const PlanFacts& facts, std::string* why) {
  for (const PlanRule& rule : PlanRules()) {
    if (rule.of_run && !facts.is_run()) continue;
    std::string refusal = rule.refusal(facts);
    if (refusal.empty()) continue;
    if (why != nullptr) *why = std::move(refusal);
    return &rule;
  }
  return nullptr;
}

void CheckPlan(const Options& options, PlanFacts facts) {
  facts.describe = [&](std::string_view key) { return options.Describe(key); };
  std::string why;
  if (const PlanRule* const rule = BrokenRule(facts, &why)) options.Fail(rule->keys, why);
}

}  // namespace lockstep::models
