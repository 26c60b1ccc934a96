#include "models/train/run_checks.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/system/shell_word.h"
#include "data/dataset.h"
#include "data/text/text_files.h"
#include "data/token_shards.h"
#include "dist/groups/planned_group.h"
#include "dist/shard/shard_sum.h"
#include "dist/tensor/tensor_experts.h"
#include "dist/tensor/tensor_ranks.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/stochastic_rounding.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/gpt.h"
#include "models/gpt/peft/adapter.h"
#include "models/report/run_progress.h"
#include "models/train/parallelize.h"
#include "models/train/pipeline_parallel.h"
#include "models/train/run_data.h"
#include "models/train/run_ranks.h"

namespace lockstep::models {

PlanFacts FactsOf(const RunSetup& setup) {
  const ParallelOptions& parallel = setup.config.parallel;
  return {.config = setup.config,
          .processes = setup.data_ranks * parallel.pp * parallel.cp * parallel.tp,
          .data_ranks = setup.data_ranks,
          .micro_batches = setup.micro_batches,
          .goes_on = setup.start.going_on.has_value()};
}

void CheckRecompute(const Options& options, const RunSetup& setup) {
  using enum nn::MlpActivation;
  const GptConfig& m = setup.model;
  const auto fail = [&](const std::string& why) {
    options.Fail(StrCat("{train.recompute}: ", why));
  };
  for (const std::string& op : m.recompute.ops) {
    const bool gelu = m.activation == kGelu || m.activation == kGeluExact;
    const bool has = op == "gelu"         ? gelu
                     : op == "relu2"      ? m.activation == kRelu2
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

namespace {

// The fewest heads that attention on a GPU takes, of a width that stays.
int64_t HeadsForGpus(const GptConfig& m) {
  const auto fits = [&](int64_t heads) {
    const int64_t head = m.n_embd / heads;
    return m.n_embd % heads == 0 && heads % m.n_kv_head == 0 && head <= cuda::kAttentionMaxHead &&
           (m.position != Position::kRope || head % 2 == 0);
  };
  int64_t heads = m.n_head;
  while (!fits(heads)) ++heads;
  return heads;
}

}  // namespace

void CheckHeads(const Options& options, const RunSetup& setup) {
  const GptConfig m = Resolved(setup.model);
  if (setup.device.is_cpu() || m.head_dim <= cuda::kAttentionMaxHead) return;
  std::string instead;  // of weights nothing can be chosen
  if (setup.weights.empty()) {
    instead = setup.config.model.head_dim > 0 ? StrCat("model.head_dim = ", cuda::kAttentionMaxHead)
                                              : StrCat("model.n_head = ", HeadsForGpus(m));
    instead += ", or ";
  }
  options.Fail({"model.n_head", "model.n_embd", "model.head_dim", "init_from", "device"},
               StrCat("attention on a GPU takes heads of up to ", cuda::kAttentionMaxHead,
                      " numbers, and those of this model have ", m.head_dim, ": use ", instead,
                      "device = \"cpu\""));
}

void CheckOffload(const Options& options, const RunSetup& setup) {
  if (setup.model.offload.any() && setup.device.is_cpu()) {
    options.Fail(
        "{train.offload} moves what a GPU keeps to the host, and this run is on the CPU: "
        "leave it out, or use train.recompute = \"block\"");
  }
  if (setup.model.offload.weights && setup.model.lora.quantizes()) {
    options.Fail(
        "{train.offload} keeps weights on the host, and {lora.base} in 4 bits on the GPU: "
        "use one of them; activations and optimizer can be offloaded beside either");
  }
}

void CheckAdapters(const Options& options, const RunSetup& setup) {
  const LoraOptions& lora = setup.model.lora;
  const ParallelOptions& parallel = setup.config.parallel;
  if (lora.rank == 0) return;
  const bool cut = parallel.tensor_parts() > 1 || parallel.ep > 1 || parallel.context_pairs() > 1;
  try {
    Gpt shape(setup.model);
    if (cut && lora.dropout > 0) dist::RefuseDropoutOfExperts(shape);
  } catch (const ArgumentError& error) {
    options.Fail(StrCat("{lora.targets}, {lora.rank}: ", error.what()));
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
  for (const data::ValidationPart& part : setup.dataset.val_parts) paths.push_back(part.name);
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
      StrCat("{train.objective} and ", options.Describe(key),
             ": the reference is the model without its adapters, and would lack those of ", folder,
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
               StrCat("{train.objective} with a loss of routers, ", key, " = ",
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
  const auto tp = static_cast<int>(setup.config.parallel.tp);
  const std::shared_ptr<dist::ProcessGroup> group =
      tp > 1 ? dist::MakePlannedGroup(tp, /*rank=*/0) : nullptr;
  Gpt shape(setup.model);
  shape.AssignNames();
  ParallelizeLayers(shape, std::make_shared<dist::TensorRanks>(group.get(), parts));
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

namespace {

// "tokens/train.bin", or "the data (NAME)": what is not as it was.
std::string ChangedData(const TrainerState& before, const data::Dataset& now) {
  const auto& files = now.files;
  if (files.size() == before.data_files.size()) {
    for (size_t i = 0; i < files.size(); ++i) {
      if (files[i].sha256 != before.data_files[i].sha256) return files[i].path;
    }
    if (!files.empty()) {
      return StrCat("the selection from the data (", now.name, "), whose files are unchanged,");
    }
  }
  return StrCat("the data (", now.name, ")");
}

}  // namespace

// What the options leave open must be as it was when the checkpoint was trained.
void CheckContinues(const RunSetup& setup) {
  if (!setup.start.checkpoint) return;
  const TrainerState state = ReadTrainerState(*setup.start.checkpoint);
  std::string text;
  const data::Dataset& dataset = setup.dataset;
  if (state.data_fingerprint != dataset.fingerprint &&
      state.data_fingerprint != dataset.older_fingerprint) {
    text = StrCat(ChangedData(state, dataset), " is not what ", *setup.start.checkpoint,
                  " was trained on: restore it");
  } else if (state.step > 0 && state.tokens_per_step != setup.tokens_per_step) {
    text =
        StrCat(*setup.start.checkpoint, " was trained with ", state.tokens_per_step,
               " tokens a step, but ", setup.data_ranks, setup.data_ranks == 1 ? " rank" : " ranks",
               " of this configuration make ", setup.tokens_per_step,
               ": use as many ranks as before; with train.global_batch_size a run is the same "
               "at any number of them");
  } else if (const int64_t workers = WorkersOf(setup);
             workers > 0 && state.workers > 0 && workers != state.workers) {
    text = StrCat(*setup.start.checkpoint, " has the optimizer states of ", state.workers,
                  " workers (dist.outer_every), and this run has ", workers,
                  ": start as many as before, with --nproc=", state.workers);
  } else {
    return;
  }
  if (!setup.start.accepts_differences) {
    throw InputError(StrCat(text, ", or accept the difference with --checkpoint.resume=",
                            ShellWord(setup.config.out_dir)));
  }
  Warn(text);
}

// A run of its own that has made its last step may still have to evaluate, say.
void CheckHasSteps(const RunSetup& setup) {
  const RunStart& start = setup.start;
  if (!start.checkpoint || start.step < setup.steps()) return;
  if (start.step == setup.steps() && start.is_own) return;
  throw InputError(StrCat(*start.checkpoint, " is at step ", start.step,
                          ", and this run ends at step ", setup.steps(),
                          ": nothing is left to train; ask for more with --train.steps=N"));
}

// A run's own file, in a folder that was moved or copied, would go on in the folder that it names.
void CheckOwnFile(const Options& options, const RunConfig& config) {
  const std::string file = options.file(), folder = ParentPath(file);
  if (BaseName(file) != "config.toml" || options.source("out_dir") > OptionSource::kFile) return;
  std::error_code missing;
  if (CheckpointStore(folder).List().empty() ||
      std::filesystem::equivalent(folder, config.out_dir, missing)) {
    return;
  }
  throw InputError(StrCat(
      file, " lies in the folder of a run, and names another: out_dir = ", Quoted(config.out_dir),
      "; to go on with the run beside it, add ", "--out_dir=", ShellWord(folder),
      ", else --out_dir=", ShellWord(config.out_dir)));
}

// A folder whose token files are all for validation lacks those to train on.
void CheckTrainsOn(const RunSetup& setup) {
  const std::string& path = setup.config.data.path;
  const auto& files = setup.dataset.files;
  const bool named_alone = !IsDirectory(path) && !data::IsPattern(path);
  if (path.empty() || named_alone || !data::HoldsTokenFiles(path)) return;
  if (data::HoldsPreparedFiles(path)) return;
  const bool all = std::ranges::all_of(files, [](const data::FileContent& file) {
    return data::SplitOfFileName(file.path) == data::Split::kVal;
  });
  if (!all || files.empty()) return;
  throw InputError(StrCat(path, ": its token files are for validation by their names (",
                          files[0].path, "), and there is none to train on; to train on one, ",
                          "name it alone: --data.path=", ShellWord(files[0].path)));
}

// --eval_only needs weights, and data: those of the run, unless the user names others.
void CheckEvaluation(const Options& options, const RunConfig& config) {
  const std::string& from = config.init_from;
  if (from.empty()) {
    throw InputError(
        StrCat("--eval_only says nothing of random weights: name what to evaluate, as with "
               "--init_from=",
               ShellWord(config.out_dir + "/latest")));
  }
  const std::string checkpoint = CheckpointOf(from);
  const bool of_run = PathExists(JoinPath(checkpoint, "trainer_state.json"));
  if (!of_run || options.IsWritten("data.path") || options.IsWritten("data.mix")) return;
  const std::string toml = ReadTrainerState(checkpoint).config_toml;
  const DataOptions data = RunConfigFromToml(toml, checkpoint).data;
  if (data.path.empty() && data.mix.empty()) return;
  std::string file = "RUN/config.toml";
  // RUN, RUN/latest, or RUN/checkpoints/step-...
  for (const std::string& run : {from, ParentPath(from), ParentPath(ParentPath(from))}) {
    if (!PathExists(JoinPath(run, "config.toml"))) continue;
    file = JoinPath(run, "config.toml");
    break;
  }
  throw InputError(StrCat(
      from, " was trained on ", data.mix.empty() ? "data.path=" : "data.mix=",
      data.mix.empty() ? data.path : data.mix, ", and --eval_only without data evaluates the ",
      "embedded corpus: for the run's own, train_gpt ", ShellWord(file),
      " --eval_only --init_from=", ShellWord(from), "; for others, name them with --data.path"));
}

}  // namespace lockstep::models
