// The checkpoints that a run makes in its folder, and out_dir/model at its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/checkpoint_mirror.h"
#include "models/checkpoint/checkpoint_saver.h"
#include "models/checkpoint/checkpoint_store.h"
#include "models/gpt/gpt.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "optim/optimizer.h"

namespace lockstep::models {

struct SaveOptions {
  // Whether the run needs this checkpoint: its first one, its last, the one after a signal, or the
  // one where its decay begins. Save then returns once it is written, and throws if it cannot be.
  bool required = false;
  bool pinned = false;               // CheckpointManifest::pinned
  std::optional<double> val_loss{};  // of these weights, if it was measured
};

// A full disk must not end a run that can continue: where a checkpoint is not required, failing to
// write it is a warning, of the main rank.
class RunCheckpoints {
 public:
  // `setup` and `ranks` outlive it.
  RunCheckpoints(const RunSetup& setup, const RunRanks& ranks);

  // Collective. Begins a save, once the one before is finished. The caller gives what only it
  // knows of `state`: the step, the losses, the loss scale and the unfinished metrics. `outer`:
  // DataRanks::outer. Throws what CollectCheckpoint and CheckpointSaver::Wait throw, but an IoError
  // of writing only if the checkpoint is required.
  void Save(TrainerState state, const Gpt& model, const optim::Optimizer& optimizer,
            const optim::Optimizer* outer, const SaveOptions& options);
  // Whether a save is not finished: a thread may be changing the folder.
  bool is_saving() const { return saving_ >= 0; }
  // Finishes the save if it has ended, which ranks may notice after different steps. Says whether
  // it did. Throws as Save does.
  bool FinishEnded();
  // Waits for the save that is not finished, if there is one. Throws as Save does.
  void FinishSave() { Finish(/*required=*/false); }

  // Only on the main rank, after the last step's checkpoint: makes up for what a kill has left out
  // of it; makes out_dir/model if the checkpoint is in parts, and otherwise removes an older
  // out_dir/model. Returns whether all that a finished run leaves is there; a failure is a warning,
  // since the checkpoint is what counts.
  bool Conclude();

  // Only on the main rank, at the end of the run: waits until checkpoint.mirror has what out_dir
  // has, as long as `stop` returns false. Returns whether it has, or there is none; else a warning
  // says what is missing.
  bool FinishMirror(const std::function<bool()>& stop);

  // The step of the checkpoint with the lowest validation loss; -1 if none is kept, or known.
  int64_t BestStep() const;

 private:
  void Finish(bool required);
  void CheckFolder() const;

  const RunSetup& setup_;
  const RunRanks& ranks_;
  const CheckpointShare share_;
  CheckpointStore store_;
  CheckpointSaver saver_;
  std::unique_ptr<CheckpointMirror> mirror_;  // on the main rank, if the run has one
  FileIdentity folder_;                       // of out_dir, on the main rank
  int64_t saving_ = -1;            // the step of the save that is not finished; -1: there is none
  bool waited_ = false;            // a save has had to wait for the one before
  bool finished_ = false;          // TrainerState::finished of the newest checkpoint
  std::string base_;               // of adapters: whose weights they belong to
  std::string base_hash_;          // of these, on the main rank
  std::string generation_config_;  // on the main rank; may be empty
};

}  // namespace lockstep::models
