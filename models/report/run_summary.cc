#include "models/report/run_summary.h"

#include <fmt/format.h>

#include "core/system/instruction_set.h"
#include "core/thread_pool.h"
#include "data/evaluation.h"
#include "dist/pipeline/schedule_check.h"
#include "models/gpt/hf/hf_format.h"
#include "models/report/format.h"
#include "models/train/pipeline_parallel.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {
namespace {

int64_t TokensOf(const std::shared_ptr<const data::TokenSource>& source) {
  return source ? source->size() : 0;
}

// Tokens, or pairs of answers.
double SamplesOf(const RunSetup& s, const std::shared_ptr<const data::TokenSource>& source) {
  const int64_t tokens = TokensOf(source);
  return static_cast<double>(s.prefers() ? tokens / s.sample_tokens() : tokens);
}

std::string OptimizerTitle(const std::string& name) {
  if (name == "adamw") return "AdamW";
  return name == "sgd" ? "SGD" : name == "lion" ? "Lion" : "Muon";
}

std::string ScheduleTitle(const OptimOptions& o) {
  const std::string rate =
      fmt::format("learning rate {:.1e} after {} steps of warm-up", o.lr, o.warmup);
  const std::string schedule =
      o.schedule == "constant" ? rate
                               : fmt::format("{}, then {} to {:.1e}", rate, o.schedule, o.min_lr);
  const std::pair<const char*, double> own[] = {{"matrices", o.matrix_lr},
                                                {"embeddings", o.embedding_lr},
                                                {"head", o.unembedding_lr},
                                                {"scalars", o.scalar_lr}};
  std::string others;
  for (const auto& [name, lr] : own) {
    if (lr > 0) others += fmt::format("{}{} {:.1e}", others.empty() ? "" : ", ", name, lr);
  }
  return others.empty() ? schedule : fmt::format("{} ({})", schedule, others);
}

std::string DecayTitle(const OptimOptions& o) {
  return fmt::format("{}weight decay {}{}{}", o.cautious_weight_decay ? "cautious " : "",
                     o.weight_decay, o.weight_decay_schedule == "linear" ? ", falling to 0" : "",
                     o.decay_embeddings ? "" : ", not of embeddings and head");
}

std::string LengthTitle(const RunSetup& s) {
  const RunConfig& c = s.config;
  if (c.train.is_open()) {
    return fmt::format("{} by the clock, of which the decay takes the last {:.0f}%",
                       c.train.time_budget, 100 * c.optim.decay_fraction);
  }
  const auto tokens = static_cast<double>(s.SamplesBefore(s.steps()) * s.sample_tokens());
  return fmt::format("{} steps, {} tokens, {:.2f} epochs{}", s.steps(), FormatCount(tokens),
                     tokens / static_cast<double>(TokensOf(s.dataset.train)),
                     c.train.time_budget.empty()
                         ? ""
                         : fmt::format(", settled by {} of the clock", c.train.time_budget));
}

// What is said only of a run that trains.
std::vector<std::pair<std::string, std::string>> DescribeTraining(const RunSetup& s) {
  const RunConfig& c = s.config;
  return {{"batch", fmt::format("{}{} x {} tokens x {} micro-batches{} = {} tokens a step",
                                c.train.batch_size, s.prefers() ? " pairs of 2" : "", s.window(),
                                s.micro_batches,
                                s.data_ranks > 1 ? fmt::format(" on {} ranks", s.data_ranks) : "",
                                FormatCount(static_cast<double>(s.tokens_per_step)))},
          {"length", LengthTitle(s)},
          {"optimizer", fmt::format("{}, {}, {}, clip {}{}{}", OptimizerTitle(c.optim.name),
                                    ScheduleTitle(c.optim), DecayTitle(c.optim), c.optim.clip,
                                    c.optim.state_dtype == "fp32" ? "" : ", bf16 state",
                                    c.optim.master_weights ? "" : ", no fp32 weights")}};
}

// How much an evaluation takes, and how to bound one of many steps' tokens.
std::string DescribeEvaluation(const RunSetup& s) {
  constexpr int64_t kManySteps = 100;
  const TrainOptions& train = s.config.train;
  const data::EvalBatches batches(s.dataset.val, s.sample_tokens(), train.batch_size,
                                  train.eval_batches, s.document_mask);
  const char* const unit = s.prefers() ? "pairs" : "tokens";
  const int64_t rows = train.batch_size * (s.prefers() ? 1 : s.sample_tokens());
  const std::string batch = StrCat(FormatCount(static_cast<double>(rows)), " ", unit);
  const int64_t steps = TokensOf(s.dataset.val) / s.tokens_per_step;
  const bool whole = batches.has_all();
  std::string text =
      fmt::format("{} {} validation {}",
                  whole ? "all" : StrCat(batches.size(), " batches of ", batch, ", of the"),
                  FormatCount(SamplesOf(s, s.dataset.val)), unit);
  if (!s.start.evaluates) {
    if (whole && steps >= kManySteps) text += fmt::format(", as many as {} steps train on", steps);
    text += train.eval_every > 0 ? fmt::format(", every {} steps", train.eval_every)
                                 : ", after the last step";
  }
  if (whole && steps >= kManySteps) {
    text += "; --train.eval_batches=N takes N batches of " + batch;
  }
  return text;
}

// Of a CPU that computes with less than it has.
std::string DescribeLimit(InstructionSet used, InstructionSet best) {
  return used == best ? ""
                      : fmt::format(", with {} (the CPU has {}; LOCKSTEP_MAX_CPU_ISA limits it)",
                                    ToString(used), ToString(best));
}

// Who wants to divide the run later must know before its first step.
std::string DescribeBits(const RunSetup& s) {
  const ParallelOptions& parallel = s.config.parallel;
  return fmt::format(
      "fixed by {} micro-batches a step, virtual.tp={} and virtual.cp={}: these cannot change "
      "after "
      "the first step, and the numbers of ranks must divide them",
      s.micro_batches, parallel.tensor_parts(), parallel.context_pairs());
}

}  // namespace

std::vector<std::pair<std::string, std::string>> DescribeRun(const RunSetup& s, const Gpt& model,
                                                             const MemoryPlan& memory) {
  const GptConfig& m = s.model;
  const RunConfig& c = s.config;
  const int64_t tp = c.parallel.tp;
  int64_t trained = 0;
  for (const auto& p : model.Parameters()) {
    if (p->trainable()) trained += p->logical_shape().numel();
  }
  const std::string adapters =
      m.lora.rank == 0
          ? ""
          : fmt::format("{}, of which adapters of rank {} ({}) are trained: {}",
                        m.lora.quantizes() ? StrCat(" (", m.lora.base, ": 4 bits)") : "",
                        m.lora.rank, m.lora.targets, FormatCount(static_cast<double>(trained)));
  std::vector<std::pair<std::string, std::string>> facts = {
      {"model",
       fmt::format("{}, {} layers, {} heads, width {}, context {}, vocabulary {}: {} parameters{}",
                   HfTitle(m), m.n_layer, m.n_head, m.n_embd, m.block_size, m.vocab_size,
                   FormatCount(static_cast<double>(model.NumWeights())), adapters)},
      {"data", s.start.evaluates
                   ? s.dataset.name
                   : fmt::format("{}: {} training and {} validation {}, {}", s.dataset.name,
                                 FormatCount(SamplesOf(s, s.dataset.train)),
                                 FormatCount(SamplesOf(s, s.dataset.val)),
                                 s.prefers() ? "pairs of answers" : "tokens", c.data.order)}};
  if (!s.weights.empty()) facts.insert(facts.begin() + 1, {"weights", s.weights});
  if (!s.start.evaluates) {
    for (auto& fact : DescribeTraining(s)) facts.push_back(std::move(fact));
  }
  if (s.dataset.val && s.dataset.val->size() >= 2) {
    facts.emplace_back("evaluates", DescribeEvaluation(s));
  }
  facts.emplace_back(
      "computes",
      fmt::format("on {}, {} threads{}{}, {}{}, seed {}{}", ToString(s.device), NumThreads(),
                  s.data_ranks > 1 || tp > 1 || c.parallel.cp > 1 ? " per rank" : "",
                  DescribeLimit(UsedInstructionSet(), CpuInstructionSet()), c.train.precision,
                  !s.device.is_cuda() || !c.train.cuda_graphs || s.start.evaluates ? ""
                  : SumsGradients(s)
                      ? ", without CUDA graphs: gradients are summed over ranks or in a fixed order"
                      : ", CUDA graphs",
                  c.seed,
                  WorkersOf(s) > 0
                      ? fmt::format(", DiLoCo in rounds of {} steps", c.dist.outer_every)
                  : (s.data_ranks > 1 || c.dist.reduction != "fast") && !s.start.evaluates
                      ? fmt::format(", {} sum of gradients", c.dist.reduction)
                      : ""));
  if (c.dist.reduction == "ordered" && !s.start.evaluates) {
    facts.emplace_back("bits", DescribeBits(s));
  }
  facts.emplace_back("memory", Summary(memory));
  if (const nn::MixtureOptions& x = m.mixture; x.n_expert > 0) {
    facts.insert(
        facts.begin() + 1,
        {"experts",
         fmt::format(
             "{} of {} for a token{}, width {}, router {}{}{}: {} active parameters",
             x.n_expert_used, x.n_expert,
             c.parallel.ep > 1 ? fmt::format(", {} on each rank", x.n_expert / c.parallel.ep) : "",
             x.n_inner, RouterName(x.router),
             x.n_shared > 0 ? fmt::format(", shared width {}", x.n_shared) : "",
             m.n_dense > 0 ? fmt::format(", first {} layers dense", m.n_dense) : "",
             FormatCount(static_cast<double>(model.NumActiveParameters())))});
  }
  const bool recomputes = m.recompute.automatic || m.recompute.part != RecomputeChoice::Part::kNone;
  if (recomputes && !s.start.evaluates) {
    facts.insert(facts.end() - 1,
                 {"recomputes", Describe(m.recompute, m.n_layer) +
                                    (m.recompute.automatic ? ", chosen by the memory plan" : "")});
  }
  OffloadChoice offload = s.model.offload;
  if (s.start.evaluates) offload.activations = offload.optimizer = false;
  if (offload.any()) {
    facts.insert(facts.end() - 1, {"offloads", Describe(offload) + " to the host's memory"});
  }
  if (c.parallel.pp > 1) {
    const dist::PipelineSchedule schedule =
        ScheduleOf(ToPipelinePlan(c, s.window(), /*trace=*/nullptr), s.micro_batches,
                   static_cast<int>(c.parallel.pp), static_cast<int>(s.data_ranks));
    facts.emplace_back(
        "pipeline",
        fmt::format("{} ranks by {}, {} {}", c.parallel.pp, c.parallel.schedule, s.data_ranks,
                    s.data_ranks == 1 ? "copy" : "copies") +
            (s.start.evaluates
                 ? ""
                 : fmt::format("; with {} micro-batches through each, and stages that take equally "
                               "long, idle for {:.0f}% of a step",
                               schedule.micro_batches,
                               100 * dist::Simulate(schedule).IdleShare())));
  }
  if (c.parallel.context_pairs() > 1) {
    facts.emplace_back(
        "sequences",
        fmt::format("on {} {} each, in {} pairs of chunks (virtual.cp)", c.parallel.cp,
                    c.parallel.cp == 1 ? "rank" : "ranks", c.parallel.context_pairs()));
  }
  if (c.parallel.tensor_parts() > 1) {
    facts.emplace_back("layers",
                       fmt::format("split across {} {}, sums in {} parts", tp,
                                   tp == 1 ? "rank" : "ranks", c.parallel.tensor_parts()));
  }
  const bool shards_weights = c.parallel.shard == "full";
  if (IsSharded(s) && (shards_weights || !s.start.evaluates)) {
    const int64_t ranks = c.parallel.shard_ranks > 0 ? c.parallel.shard_ranks : s.data_ranks;
    facts.emplace_back("sharding",
                       fmt::format("{}, {} ranks to a copy of the model, {} in all",
                                   s.start.evaluates                 ? "weights"
                                   : shards_weights                  ? "weights, gradients, state"
                                   : c.parallel.shard == "gradients" ? "gradients and state"
                                                                     : "optimizer state",
                                   ranks, s.data_ranks));
  }
  if (memory.program > 0) facts.emplace_back("process", ProcessSummary(memory));
  if (!s.start.evaluates) {
    const std::string& mirror = c.checkpoint.mirror;
    facts.emplace_back("writes", mirror.empty() ? c.out_dir : c.out_dir + ", copied to " + mirror);
  }
  return facts;
}

}  // namespace lockstep::models
