#include "models/train/run_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/system/shell_word.h"
#include "data/dataset.h"
#include "data/text/text_files.h"
#include "data/token_shards.h"
#include "dist/groups/planned_group.h"
#include "dist/shard/shard_sum.h"
#include "dist/tensor/tensor_ranks.h"
#include "kernels/stochastic_rounding.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/gpt.h"
#include "models/gpt/peft/adapter.h"
#include "models/memory/memory_plan.h"
#include "models/train/parallelize.h"
#include "models/train/pipeline_parallel.h"
#include "models/train/run_data.h"
#include "models/train/run_optimizer.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {

PlanFacts FactsOf(const RunSetup& setup) {
  const ParallelOptions& parallel = setup.config.parallel;
  return {.config = setup.config,
          .processes = setup.data_ranks * parallel.pp * parallel.cp * parallel.tp,
          .data_ranks = setup.data_ranks,
          .micro_batches = setup.micro_batches};
}

void CheckRecompute(const Options& options, const RunSetup& setup) {
  using enum nn::MlpActivation;
  const GptConfig& m = setup.model;
  const auto fail = [&](const std::string& why) {
    options.Fail({"train.recompute"}, StrCat(options.Describe("train.recompute"), ": ", why));
  };
  for (const std::string& op : m.recompute.ops) {
    const bool gelu = m.activation == kGelu || m.activation == kGeluExact;
    const bool has = op == "gelu"         ? gelu
                     : op == "silu"       ? m.activation == kSilu
                     : op == "swiglu"     ? m.activation == kSwiGlu
                     : op == "geglu_tanh" ? m.activation == kGegluTanh
                     : op == "layer_norm" ? m.norm == NormKind::kLayerNorm
                                          : m.norm == NormKind::kRmsNorm;
    if (!has) {
      fail(StrCat("a model with model.activation = \"", Name(m.activation),
                  "\" and model.norm = \"", Name(m.norm), "\" has no ", op,
                  ": leave it out, or use block, attention or mlp"));
    }
    // A grouped product, of experts, has no activation of its own.
    const bool products = m.mixture.n_expert == 0 || m.n_dense > 0 || m.mixture.n_shared > 0;
    const bool fused = op == "gelu" && m.activation == kGelu && products;
    if (fused && !(setup.device.is_cpu() && setup.config.train.precision == "fp32")) {
      fail(
          "gelu is part of a matrix product, and has the same bits by itself only on the CPU in "
          "fp32: use mlp, which recomputes little more and frees more memory");
    }
  }
}

void CheckOffload(const Options& options, const RunSetup& setup) {
  if (setup.model.offload.any() && setup.device.is_cpu()) {
    options.Fail(
        {"train.offload"},
        StrCat(options.Describe("train.offload"), " moves what a GPU keeps to the host, ",
               "and this run is on the CPU: leave it out, or use train.recompute = ", "\"block\""));
  }
  if (setup.model.offload.weights && setup.model.lora.quantizes()) {
    options.Fail({"train.offload", "lora.base"},
                 StrCat(options.Describe("train.offload"), " keeps weights on the host, and ",
                        options.Describe("lora.base"), " in 4 bits on the GPU: use one of them; ",
                        "activations and optimizer can be offloaded beside either"));
  }
}

void CheckAdapters(const Options& options, const RunSetup& setup) {
  if (setup.model.lora.rank == 0) return;
  try {
    Gpt shape(setup.model);
  } catch (const ArgumentError& error) {
    options.Fail({"lora.targets", "lora.rank"},
                 StrCat(options.Describe("lora.targets"), ", ", options.Describe("lora.rank"), ": ",
                        error.what()));
  }
}

void CheckHeldOut(const Options& options, const RunSetup& setup) {
  constexpr std::string_view kKey = "data.val_fraction";
  const bool given =
      options.IsWritten(kKey) && setup.config.data.val_fraction != DataOptions().val_fraction;
  // What an earlier version began continues.
  if (!given || !setup.dataset.val_has_files || setup.start.checkpoint) return;
  options.Fail({kKey}, StrCat(options.Describe(kKey), " does nothing, because ", setup.dataset.name,
                              " has files for validation: leave ", kKey, " out, or name only the ",
                              "files for training with --data.path"));
}

void CheckField(const Options& options, const RunSetup& setup) {
  constexpr std::string_view kKey = "data.field";
  const DataOptions& data = setup.config.data;
  const bool given = options.IsWritten(kKey) && data.field != DataOptions().field;
  if (!given || setup.start.checkpoint) return;
  std::vector<std::string> paths = {data.path};
  if (!data.mix.empty()) paths = setup.dataset.mixture_paths;
  if (std::ranges::any_of(paths, data::HoldsJsonLines)) return;
  options.Fail({kKey}, StrCat(options.Describe(kKey), " does nothing, because no file of ",
                              setup.dataset.name, " is JSONL by its name: leave ", kKey,
                              " out, or let the names of files of rows end in .jsonl"));
}

namespace {

// The reference is the model without any adapters: those that another objective, or one with other
// base weights, has trained would be missing in it.
void CheckReference(const Options& options, const RunSetup& setup) {
  const std::string& folder = setup.weights;
  if (!setup.start.checkpoint && !PeftAdapter::Exists(folder)) return;
  if (PathExists(JoinPath(folder, "trainer_state.json"))) {
    const RunConfig before = RunConfigFromToml(ReadTrainerState(folder).config_toml, folder);
    if (before.train.objective == "dpo" && before.lora.base == setup.config.lora.base) return;
  }
  const char* key = setup.start.checkpoint ? "checkpoint.resume" : "init_from";
  options.Fail(
      {"train.objective", key},
      StrCat(options.Describe("train.objective"), " and ", options.Describe(key), ": the ",
             "reference is the model without its adapters, and would lack those of ", folder,
             ": merge them first (export_gpt --checkpoint=", ShellWord(folder),
             " --out=merged), and train new ones with init_from=merged and lora.rank = 16"));
}

}  // namespace

void CheckPreferences(const Options& options, const RunSetup& setup) {
  if (!setup.prefers()) return;
  CheckReference(options, setup);
  const nn::MixtureOptions& m = setup.model.mixture;
  if (m.n_expert == 0 || (m.balance_loss == 0 && m.z_loss == 0)) return;
  const char* key = m.balance_loss > 0 ? "model.balance_loss" : "model.z_loss";
  options.Fail({"train.objective", key},
               StrCat(options.Describe("train.objective"), " with a loss of routers, ", key, " = ",
                      m.balance_loss > 0 ? m.balance_loss : m.z_loss,
                      ": that is a mean over tokens, and this one over pairs: set it to 0"));
}

namespace {

void CheckShards(const RunSetup& setup) {
  if (!IsSharded(setup)) return;
  const int64_t ranks = setup.data_ranks, of_a_copy = setup.config.parallel.shard_ranks;
  const int64_t shards = of_a_copy > 0 ? of_a_copy : ranks;
  try {
    const dist::ShardOptions options =
        ToShardOptions(setup.config, setup.micro_batches, /*trace=*/nullptr);
    dist::PlanShardSum(setup.micro_batches, {shards, ranks / shards}, options.accumulate,
                       options.sum, options.experts);
  } catch (const ArgumentError& error) {
    throw InputError(
        StrCat(error.what(),
               ". train.grad_accum or train.global_batch_size set the micro-batches of a step; "
               "parallel.shard=optimizer scatters once a step, parallel.shard=gradients after each "
               "backward; dist.reduction=fast gives up the fixed order"));
  }
}

// Stochastic rounding draws by an element's number in the whole parameter, which it finds only in
// some parts (ElementPlace).
void CheckRounding(const RunSetup& setup, int64_t parts) {
  const OptimOptions& optim = setup.config.optim;
  const int64_t tp = setup.config.parallel.tp;
  if (tp == 1 || (optim.master_weights && optim.state_dtype == "fp32")) return;
  for (int64_t rank = 0; rank < tp; ++rank) {
    const auto group = dist::MakePlannedGroup(static_cast<int>(tp), static_cast<int>(rank));
    Gpt shape(setup.model);
    shape.AssignNames();
    ParallelizeLayers(shape, std::make_shared<dist::TensorRanks>(group.get(), parts));
    for (const auto& p : shape.Parameters()) {
      try {
        PlaceOf(p->layout(), p->logical_shape());
      } catch (const ArgumentError&) {
        throw InputError(StrCat(
            "optim.master_weights = false and optim.state_dtype = \"bf16\" each round at random, "
            "which is not supported for the parts of '",
            p->name(), "' that parallel.tp = ", tp,
            " makes, whose queries, keys and values differ in size (model.n_kv_head): use "
            "optim.master_weights = true with optim.state_dtype = \"fp32\", or shard the model by "
            "parallel.shard instead of parallel.tp"));
      }
    }
  }
}

void CheckLayers(const RunSetup& setup) {
  const int64_t parts = setup.config.parallel.tensor_parts();
  if (parts == 1) return;
  try {
    Gpt shape(setup.model);
    shape.AssignNames();
    ParallelizeLayers(shape, std::make_shared<dist::TensorRanks>(nullptr, parts));
  } catch (const ArgumentError& error) {
    throw InputError(error.what());
  }
  CheckRounding(setup, parts);
}

void CheckStages(const RunSetup& setup) {
  if (setup.config.parallel.pp == 1) return;
  const ParallelPlan plan = PlanOf(setup);
  PipelineParallel::CheckOffload(plan.pipeline->kind, IsSharded(setup), setup.model);
  Gpt shape(setup.model);
  PipelineParallel::RanksOf(plan, static_cast<int>(setup.config.parallel.pp),
                            static_cast<int>(setup.data_ranks), shape);
}

}  // namespace

void CheckPlan(const Options& options, const RunSetup& setup) {
  CheckPlan(options, FactsOf(setup));
  CheckShards(setup);
  CheckLayers(setup);
  CheckStages(setup);
}

std::string NoteOnPlan(const RunSetup& setup) {
  const ParallelOptions& parallel = setup.config.parallel;
  if (parallel.shard != "none" && setup.data_ranks == 1) {
    return StrCat("parallel.shard = \"", parallel.shard,
                  "\" shards nothing in a single process: start several, as with --nproc=4");
  }
  const bool is_later = parallel.schedule == "zb_h1" || parallel.schedule == "zbv";
  if (parallel.pp == 1 || !is_later || parallel.context_pairs() == 1) return "";
  return StrCat(
      "parallel.schedule = \"", parallel.schedule,
      "\" defers no products where sequences are cut (parallel.cp or virtual.cp), only the "
      "sums over their chunks, which take memory until then: use \"",
      parallel.schedule == "zbv" ? "interleaved" : "1f1b", "\", with the same weights");
}

std::string NoteOnSplits(const DataOptions& options) {
  for (const std::string& path : SourcesOf(options)) {
    // The names of token files do split them.
    if (path.empty() || path == "-" || data::HoldsTokenFiles(path)) continue;
    const std::vector<std::string> files = data::ListTextFiles(std::vector{path});
    const std::vector<data::Split> splits = data::SplitsOf(files);
    const auto held_out = std::ranges::find(splits, data::Split::kVal) - splits.begin();
    const bool trains = std::ranges::count(splits, data::Split::kTrain) > 0;
    if (held_out == std::ssize(splits) || !trains) continue;
    const bool by_name = data::SplitOfFileName(files[held_out]) == data::Split::kVal;
    const std::string pattern = JoinPath(ParentPath(files[held_out]), "*train*");
    return StrCat(path, ": ", files[held_out], " is trained on with the others, whatever its path ",
                  "says: of texts, data.val_fraction is held out. Name only what is for training",
                  by_name ? StrCat(", as with --data.path='", pattern, "'") : "");
  }
  return "";
}

std::string NoteOnWarmup(const Options& options, const RunSetup& setup) {
  if (2 * setup.config.optim.warmup <= setup.steps()) return "";
  return StrCat(options.Describe("optim.warmup"), " is more than half of the ", setup.steps(),
                setup.steps() == 1 ? " step" : " steps",
                " of this run, which hardly learns before ",
                "its learning rate has risen: leave it out for a tenth of them, or train longer");
}

std::string NoteOnDecay(const Options& options, const RunSetup& setup) {
  const optim::LrSchedule schedule = MakeSchedule(setup);
  const int64_t begin = setup.start.step;  // the update after `step` has schedule(step)
  if (begin >= setup.steps()) return "";
  const auto rate = [](double lr) { return fmt::format("{:.1e}", lr); };
  if (setup.start.checkpoint) {
    const double before = ReadTrainerState(*setup.start.checkpoint).lr.value_or(schedule(begin));
    const double now = schedule(begin);
    if (now > 2 * before && now > 0.01 * setup.config.optim.lr) {
      return StrCat("the learning rate was ", rate(before), " at step ", begin, " and is ",
                    rate(now), " now, as if the run had been this long from the start: ",
                    "for an even, small one use --optim.schedule=constant --optim.lr=",
                    rate(0.1 * setup.config.optim.lr), "; for a warm-up and a decay of its own ",
                    "begin anew from the weights, --init_from=", ShellWord(*setup.start.checkpoint),
                    " with another out_dir");
    }
  }
  const double last = schedule(setup.steps() - 1), end = schedule(setup.config.optim.decay_steps);
  if (setup.config.optim.decay_steps > setup.steps() && last > 2 * end) {
    return StrCat(options.Describe("optim.decay_steps"), ", so that the learning rate is still ",
                  rate(last), " when this run of ", setup.steps(),
                  " steps ends: with --optim.decay_steps=0 it decays to the end of the run");
  }
  return "";
}

std::string NoteOnRate(const Options& options, const RunSetup& setup) {
  const bool tunes = setup.conversations || setup.prefers();
  if (!tunes || setup.config.init_from.empty() || options.IsWritten("optim.lr")) return "";
  return StrCat(options.Describe("optim.lr"), " is meant for random weights; ",
                "tuning usually takes 1e-5 to 5e-5, and adapters ten times that");
}

}  // namespace lockstep::models
