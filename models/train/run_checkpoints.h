// The checkpoints that a run makes in its folder, and out_dir/model at its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/checkpoint_saver.h"
#include "models/checkpoint/checkpoint_store.h"
#include "models/gpt/gpt.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"
#include "optim/optimizer.h"

namespace lockstep::models {

struct SaveOptions {
  // Whether the run needs this checkpoint: its first one, its last, the one after a signal. Save
  // then returns once it is written, and throws if it cannot be.
  bool required = false;
  std::optional<double> val_loss{};  // of these weights, if it was measured
};

// A full disk must not end a run that can continue: where a checkpoint is not required, failing to
// write it is a warning. Warnings come from the main rank.
class RunCheckpoints {
 public:
  // Collective. `setup` and `ranks` outlive it.
  RunCheckpoints(const RunSetup& setup, const RunRanks& ranks);

  // Collective. Begins a save, once the one before is finished. The caller gives what only it
  // knows of `state`: the step, the losses, the loss scale and the unfinished metrics. Throws
  // IoError and what CheckpointSaver::Wait throws.
  void Save(TrainerState state, const Gpt& model, const optim::Optimizer& optimizer,
            const SaveOptions& options);
  // Collective. Finishes the save under way, if any, and says whether there was one.
  bool Finish(bool required);
  // Collective, cheap. The same, if the save has ended.
  bool FinishEnded() { return saver_.Ended() && Finish(/*required=*/false); }

  // Only on the main rank, after the last step: makes out_dir/model of the newest checkpoint, where
  // ranks save parts, and otherwise removes an older one. Returns whether all that a finished run
  // leaves is there; a failure is a warning, since the checkpoint is what counts.
  bool Conclude();

  // The step of the checkpoint with the lowest validation loss; -1 if none is kept, or known.
  int64_t BestStep() const;

 private:
  const RunSetup& setup_;
  const RunRanks& ranks_;
  const CheckpointShare share_;
  CheckpointStore store_;
  CheckpointSaver saver_;
  int64_t saving_ = -1;            // the step of the save that is not finished; -1: there is none
  bool waited_ = false;            // a save has had to wait for the one before
  bool finished_ = false;          // TrainerState::finished of the last checkpoint
  std::string base_;               // of adapters: whose weights they belong to
  std::string base_hash_;          // of these, on the main rank
  std::string generation_config_;  // on the main rank; may be empty
};

}  // namespace lockstep::models
