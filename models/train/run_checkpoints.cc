#include "models/train/run_checkpoints.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "core/system/shell_word.h"
#include "models/checkpoint/adapter_base.h"
#include "models/checkpoint/hf_model.h"
#include "models/checkpoint/tensor_parts.h"
#include "models/gpt/hf/generation_config.h"
#include "models/report/run_progress.h"
#include "models/train/parallel_plan.h"
#include "models/train/run_generation.h"
#include "models/train/run_model.h"

namespace lockstep::models {
namespace {

CheckpointShare ShareOf(const RunSetup& setup, const RunRanks& ranks) {
  const std::vector<int> same =
      RanksWithSamePart(setup, MeshOf(setup.config, ranks.rank(), ranks.size()));
  return {.rank = ranks.rank(),
          .ranks = ranks.size(),
          .parts = SavesParts(setup),
          .copy = {dist::IndexOf(same, ranks.rank()), std::ssize(same)}};
}

}  // namespace

RunCheckpoints::RunCheckpoints(const RunSetup& setup, const RunRanks& ranks)
    : setup_(setup),
      ranks_(ranks),
      share_(ShareOf(setup, ranks)),
      store_(setup.config.out_dir, {.keep = setup.config.checkpoint.keep,
                                    .keep_best = setup.config.checkpoint.keep_best,
                                    .warn = Warn}),
      saver_(store_, {.async = setup.config.checkpoint.async,
                      .device = setup.device,
                      .group = ranks.checkpoints(),
                      .warn = Warn}) {
  if (setup.model.lora.rank > 0) {
    base_ = std::filesystem::canonical(WeightsOf(setup.weights));
    if (ranks.is_main()) base_hash_ = HashOfBase(base_);
  }
  if (ranks.is_main() && !setup.start.evaluates) folder_ = IdentityOf(setup.config.out_dir);
  const CheckpointOptions& options = setup.config.checkpoint;
  if (ranks.is_main() && !setup.start.evaluates && !options.mirror.empty()) {
    mirror_ = std::make_unique<CheckpointMirror>(
        setup.config.out_dir, options.mirror,
        MirrorOptions{
            .keep = options.keep, .keep_best = options.keep_best, .warn = Warn, .say = Print});
  }
  if (ranks.is_main()) generation_config_ = GenerationConfigOf(setup);
  if (setup.start.going_on) {
    finished_ = setup.start.going_on->finished;
  } else if (setup.start.checkpoint) {
    finished_ = ReadTrainerState(*setup.start.checkpoint).finished;
  }
}

// A folder of the same name would get checkpoints, but not the log that is open, nor the lock.
void RunCheckpoints::CheckFolder() const {
  ranks_.OnMain("looking at the run folder", [&] {
    const std::string& folder = setup_.config.out_dir;
    if (PathExists(folder) && IdentityOf(folder) == folder_) return;
    throw IoError(StrCat(folder, " was moved or removed while the run was writing there: bring it ",
                         "back, and the same command goes on from its last checkpoint"));
  });
}

void RunCheckpoints::Save(TrainerState state, const Gpt& model, const optim::Optimizer& optimizer,
                          const optim::Optimizer* outer, const SaveOptions& options) {
  CheckFolder();
  state.tokens_seen = setup_.SamplesBefore(state.step) * setup_.sample_tokens();
  state.tokens_per_step = setup_.tokens_per_step;
  state.measured_on = setup_.measured_on;
  if (state.step > 0) state.lr = MakeSchedule(setup_.config)(state.step - 1);
  state.config_toml = ToToml(setup_.asked);
  state.arithmetic = ArithmeticOf(setup_);
  state.data_fingerprint = setup_.dataset.fingerprint;
  state.data_files = setup_.dataset.files;
  state.finished = state.step >= setup_.steps() && state.unfinished_metrics.empty();
  state.workers = WorkersOf(setup_);
  state.base = base_;
  state.base_hash = base_hash_;
  if (is_saving() && !saver_.Ended() && ranks_.is_main() && !std::exchange(waited_, true)) {
    Warn(StrCat("the checkpoint of step ", saving_,
                " is still being written, and training waits for it: raise checkpoint.every if "
                "that happens often (this is said once)"));
  }
  Finish(/*required=*/false);
  saver_.Save([&](HostSnapshot* snapshot) {
    CheckpointShare share = share_;
    share.outer = outer;
    CheckpointFiles files =
        CollectCheckpoint(state, model, optimizer, setup_.dataset.tokenizer.get(), share, snapshot);
    if (!generation_config_.empty())
      files.texts.emplace_back(kGenerationConfig, generation_config_);
    files.val_loss = options.val_loss;
    files.measured_on = setup_.measured_on;
    files.pinned = options.pinned;
    return files;
  });
  saving_ = state.step;
  finished_ = state.finished;
  if (options.required || !setup_.config.checkpoint.async) Finish(options.required);
}

bool RunCheckpoints::FinishEnded() {
  if (!is_saving() || !saver_.Ended()) return false;
  Finish(/*required=*/false);
  return true;
}

void RunCheckpoints::Finish(bool required) {
  if (!is_saving()) return;
  const int64_t step = std::exchange(saving_, -1);
  try {
    saver_.Wait();
    if (mirror_) mirror_->Update();
  } catch (const IoError& e) {
    if (required) throw;
    if (ranks_.is_main()) {
      Warn(StrCat("no checkpoint of step ", step, ": ", e.what(),
                  "; training continues, and earlier checkpoints are kept"));
    }
  }
}

bool RunCheckpoints::Conclude() {
  LS_INVARIANT(!is_saving(), "the run ends while the checkpoint of step ", saving_, " is saved");
  const std::string& folder = setup_.config.out_dir;
  bool in_parts = share_.parts;
  try {
    const auto checkpoints = store_.List();
    if (checkpoints.empty()) return finished_;  // somebody removed them
    // A kill may have cut off the save of the process before.
    if (setup_.start.step == setup_.steps()) store_.Conclude(checkpoints[0]);
    // Another number of ranks may have saved it.
    in_parts = TensorParts::Exist(checkpoints[0].path);
    if (in_parts) {
      WriteHfModel(checkpoints[0], folder);
    } else if (const auto step = RemoveHfModel(folder)) {
      Print(StrCat("removed ", folder, "/model, which had the weights of step ", *step,
                   ": those of step ", checkpoints[0].step, " are in ", folder, "/latest"));
    }
    return finished_;
  } catch (const Error& e) {
    Warn(in_parts ? StrCat("no new ", folder, "/model: ", e.what(),
                           "; the same command makes it later, and so does consolidate "
                           "--checkpoint=",
                           ShellWord(folder), " --to=FOLDER")
                  : StrCat("an older ", folder, "/model may still be there: ", e.what(),
                           "; the weights of the last step are in ", folder, "/latest"));
    return false;
  }
}

bool RunCheckpoints::FinishMirror(const std::function<bool()>& stop) {
  return !mirror_ || mirror_->Finish(stop);
}

int64_t RunCheckpoints::BestStep() const {
  if (!setup_.config.checkpoint.keep_best) return -1;
  try {
    const auto best = store_.Best();
    return best ? best->step : -1;
  } catch (const IoError& e) {
    Warn(StrCat("the best checkpoint is unknown: ", e.what()));
    return -1;
  }
}

}  // namespace lockstep::models
