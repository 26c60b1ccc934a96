// The checkpoints of a run folder. A crash, a full disk or a damaged file costs at most the newest
// one:
//
//   out_dir/checkpoints/step-00001000/{files ..., DONE}
//   out_dir/latest -> checkpoints/step-00001000
//
// A checkpoint is built under a temporary name, synced to the disk with the sizes and SHA-256 of
// its files (DONE), and only then renamed. Only one run writes to a run folder at a time, and one
// of its processes calls Save; any number read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint/checkpoint_manifest.h"
#include "models/checkpoint/checkpoint_writer.h"
#include "models/checkpoint/held_checkpoint.h"

namespace lockstep::models {

struct Checkpoint {
  int64_t step = 0;
  std::string path;  // a folder
};

class CheckpointStore {
 public:
  // Receives a sentence for the user.
  using Warn = std::function<void(const std::string&)>;

  struct Options {
    // How many checkpoints Save leaves; 0: all.
    int64_t keep = 0;
    // Whether the one with the lowest validation loss is kept, too, with `best` pointing to it.
    bool keep_best = false;
    // Receives problems that don't make a call fail. Default: a line to std::cerr.
    Warn warn;
  };

  // Touches nothing on the disk.
  explicit CheckpointStore(std::string out_dir) : CheckpointStore(std::move(out_dir), Options()) {}
  CheckpointStore(std::string out_dir, Options options);

  // Saves what `write` adds as the checkpoint of this step, replacing an earlier one of that step;
  // points `latest` to it; removes all but the newest `keep`, the best, and the newest that was
  // saved with `pinned`. Removes leftovers of crashes first. `val_loss`: of what is saved, if it
  // was measured.
  // When it throws (an IoError if the disk is full, or what `write` throws), earlier checkpoints
  // are unchanged and nothing half-written is left. Failures once the checkpoint is safe (to update
  // `latest`, to remove old ones) are warnings.
  Checkpoint Save(int64_t step, const std::function<void(CheckpointWriter&)>& write,
                  std::optional<double> val_loss = {}, const std::string& measured_on = "",
                  bool pinned = false);

  // Save's last part, which a kill after the commit leaves out: `latest`, `best`, and the removal
  // of older checkpoints. `saved`: the newest one. Failures are warnings.
  void Conclude(const Checkpoint& saved);

  // For another process than the one that is within Save, to add files to the same checkpoint:
  // `manifest` gets them, for CheckpointWriter::Adopt. IoError if this one does not see the folder.
  CheckpointWriter Join(const std::string& folder_name, CheckpointManifest* manifest) const;

  // Adds a checkpoint that was saved elsewhere: `fill` puts all of its files into the folder, which
  // are then verified (InputError). Conclude has the rest of what Save does.
  Checkpoint Adopt(int64_t step, const std::function<void(const std::string& folder)>& fill);

  // The one with the lowest validation loss, if any has one; unverified.
  std::optional<Checkpoint> Best() const;

  // The most recently saved checkpoint whose files all have the sizes and hashes that were written.
  // Skips damaged and incomplete ones, each with a warning that says what is wrong with which file.
  // None if there is none; InputError if all are damaged. IoError if one cannot be read: it may be
  // good, and going on from an older one would replace it.
  std::optional<Checkpoint> FindNewest(const Warn& warn) const;
  std::optional<Checkpoint> FindNewest() const { return FindNewest(options_.warn); }

  // Checks a checkpoint's folder, or a symlink to one such as out/latest: InputError naming the
  // file that is missing, truncated or changed.
  static Checkpoint Verify(const std::string& path);

  // All that have a DONE file, most recently saved first, unverified.
  std::vector<Checkpoint> List() const;

  // Removes what a crash left behind. Save also does that.
  void CleanUp();

  // If copying the run folder has turned the links `latest` and `best` into folders, makes them
  // links again, with a warning: such a folder takes its place among the checkpoints, or is removed
  // if an equal one is there. InputError, with nothing touched, if it is not a whole checkpoint, or
  // differs from the one that is there.
  void RestoreLinks();

 private:
  struct Candidate;
  std::vector<Candidate> Candidates() const;
  std::string PathOf(std::string_view prefix, int64_t step) const;
  Checkpoint Fill(int64_t step, const std::function<void(const std::string& folder)>& fill);
  void Commit(const std::string& temporary, int64_t step);
  void RemoveOld(const Checkpoint& saved);
  void Link(const std::string& name, const Checkpoint& checkpoint);

  std::string out_dir_;
  std::string folder_;  // out_dir/checkpoints
  Options options_;
  bool existed_;  // out_dir, before
};

}  // namespace lockstep::models
