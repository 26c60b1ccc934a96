#include "models/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <random>
#include <sstream>
#include <utility>

#include "core/error.h"

namespace lockstep::models {
namespace {

constexpr std::string_view kStepPrefix = "step-";
// A checkpoint that is being replaced by another one of the same step.
constexpr std::string_view kOldPrefix = ".old-step-";
// Anything that is about to become a checkpoint, or to be removed.
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kSavePrefix = ".tmp-step-";
constexpr std::string_view kPrunePrefix = ".tmp-prune-step-";

std::string FolderName(std::string_view prefix, int64_t step) {
  std::ostringstream out;
  out << prefix << std::setw(8) << std::setfill('0') << step;
  return std::move(out).str();
}

// The step of a folder with that prefix; none for names that FolderName does not make.
std::optional<int64_t> StepOf(std::string_view prefix, const std::string& name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  int64_t step = -1;
  const auto result = std::from_chars(name.data() + prefix.size(), end, step);
  if (result.ec != std::errc() || result.ptr != end || step < 0) return std::nullopt;
  if (FolderName(prefix, step) != name) return std::nullopt;
  return step;
}

CheckpointManifest ReadManifest(const std::string& path) {
  const std::string file = JoinPath(path, kManifestName);
  return ParseManifest(ReadFile(file, int64_t{64} << 20), file);
}

// Runs f; an IoError becomes a warning. Returns whether f succeeded.
template <class F>
bool OrWarn(const CheckpointStore::Warn& warn, std::string_view what, const F& f) {
  try {
    f();
    return true;
  } catch (const IoError& error) {
    warn(StrCat(what, ": ", error.what()));
    return false;
  }
}

template <class F>
void Quietly(const F& f) {
  OrWarn([](const std::string&) {}, "", f);
}

}  // namespace

struct CheckpointStore::Candidate {
  int64_t step = 0;
  std::string path;
  CheckpointManifest manifest;
  bool readable = false;    // the manifest can be read
  bool unreadable = false;  // it may be good
  bool incomplete = false;  // there is no manifest
  std::string problem;      // why the manifest can't be read
};

CheckpointStore::CheckpointStore(std::string out_dir, Options options)
    : out_dir_(std::move(out_dir)),
      folder_(JoinPath(out_dir_, "checkpoints")),
      options_(std::move(options)),
      existed_(IsDirectory(out_dir_)) {
  LS_CHECK(options_.keep >= 0, "checkpoint.keep must be 0 (all) or positive, got ", options_.keep);
  if (!options_.warn) {
    options_.warn = [](const std::string& text) { std::cerr << "warning: " << text << std::endl; };
  }
}

std::string CheckpointStore::PathOf(std::string_view prefix, int64_t step) const {
  return JoinPath(folder_, FolderName(prefix, step));
}

// Most recently saved first. Those whose DONE can't be read are placed by their step.
std::vector<CheckpointStore::Candidate> CheckpointStore::Candidates() const {
  std::vector<Candidate> known, unknown;
  if (!IsDirectory(folder_)) return known;
  for (const std::string& name : ListDirectory(folder_)) {
    std::optional<int64_t> step = StepOf(kStepPrefix, name);
    if (!step) {
      step = StepOf(kOldPrefix, name);
      if (!step || PathExists(PathOf(kStepPrefix, *step))) continue;
    }
    Candidate candidate;
    candidate.step = *step;
    candidate.path = JoinPath(folder_, name);
    try {
      candidate.incomplete = !PathExists(JoinPath(candidate.path, kManifestName));
      candidate.manifest = ReadManifest(candidate.path);
      candidate.readable = candidate.manifest.step == *step;
      if (!candidate.readable) {
        candidate.problem = StrCat(JoinPath(candidate.path, kManifestName),
                                   " is for a different step than its folder");
      }
    } catch (const IoError& error) {
      candidate.problem = error.what();
      candidate.unreadable = true;
    } catch (const Error& error) {
      candidate.problem = error.what();
    }
    (candidate.readable ? known : unknown).push_back(std::move(candidate));
  }
  std::ranges::sort(known, SavedLater, &Candidate::manifest);
  for (Candidate& candidate : unknown) {
    const auto at = std::find_if(known.begin(), known.end(),
                                 [&](const Candidate& k) { return k.step <= candidate.step; });
    known.insert(at, std::move(candidate));
  }
  return known;
}

Checkpoint CheckpointStore::Save(int64_t step, const std::function<void(CheckpointWriter&)>& write,
                                 std::optional<double> val_loss, const std::string& measured_on,
                                 bool pinned) {
  LS_CHECK(step >= 0, "checkpoint: the step must not be negative, got ", step);
  if (existed_ && !IsDirectory(out_dir_)) {
    throw IoError(StrCat("cannot save in ", out_dir_, ", which was moved or removed"));
  }
  MakeDirectories(folder_);
  existed_ = true;
  OrWarn(options_.warn, "leftovers of an earlier save are not removed", [&] { CleanUp(); });
  CheckpointManifest manifest;
  manifest.step = step;
  manifest.pinned = pinned;
  if (val_loss && std::isfinite(*val_loss)) {
    manifest.val_loss = val_loss;
    manifest.measured_on = measured_on;
  }
  for (const Candidate& candidate : Candidates()) {
    if (!candidate.readable) continue;
    manifest.serial = std::max(manifest.serial, candidate.manifest.serial + 1);
  }
  const Checkpoint saved = Fill(step, [&](const std::string& folder) {
    CheckpointWriter writer(folder, &manifest);
    write(writer);
    FileWriter done(JoinPath(folder, kManifestName));
    done.Write(ManifestText(manifest));
    done.Sync();
    done.Close();
  });
  Conclude(saved);
  return saved;
}

void CheckpointStore::Conclude(const Checkpoint& saved) {
  const bool current = OrWarn(options_.warn, "the checkpoint is saved, but latest is not updated",
                              [&] { Link("latest", saved); });
  OrWarn(options_.warn, "the checkpoint is saved, but best is not updated", [&] {
    const std::string link = JoinPath(out_dir_, "best");
    if (const auto best = options_.keep_best ? Best() : std::nullopt) {
      Link("best", *best);
    } else if (PathExists(link)) {
      RemoveTree(link);  // its target may be removed
    }
  });
  // Otherwise the target of latest might be removed.
  if (current && options_.keep > 0) {
    OrWarn(options_.warn, "the checkpoint is saved, but older ones are not removed",
           [&] { RemoveOld(saved); });
  }
}

CheckpointWriter CheckpointStore::Join(const std::string& folder_name,
                                       CheckpointManifest* manifest) const {
  const std::string folder = JoinPath(folder_, folder_name);
  if (!IsDirectory(folder)) {
    throw IoError(StrCat("there is no ", folder,
                         ", which rank 0 has made: give all ranks the same out_dir, on a file "
                         "system that they share"));
  }
  return CheckpointWriter(folder, manifest);
}

void CheckpointStore::Link(const std::string& name, const Checkpoint& checkpoint) {
  ReplaceSymlink(JoinPath("checkpoints", BaseName(checkpoint.path)), JoinPath(out_dir_, name));
}

std::optional<Checkpoint> CheckpointStore::Best() const {
  std::vector<CheckpointManifest> manifests;
  std::vector<Checkpoint> checkpoints;
  for (Candidate& candidate : Candidates()) {
    if (!candidate.readable) continue;
    manifests.push_back(std::move(candidate.manifest));
    checkpoints.push_back({candidate.step, candidate.path});
  }
  const auto best = BestOf(manifests);
  return best ? std::optional(checkpoints[*best]) : std::nullopt;
}

Checkpoint CheckpointStore::Adopt(int64_t step,
                                  const std::function<void(const std::string& folder)>& fill) {
  MakeDirectories(folder_);
  existed_ = true;
  return Fill(step, [&](const std::string& folder) {
    fill(folder);
    Verify(folder);
  });
}

// What `fill` puts into a temporary folder becomes the checkpoint of this step, or, where that
// throws, is removed.
Checkpoint CheckpointStore::Fill(int64_t step,
                                 const std::function<void(const std::string& folder)>& fill) {
  // A process of an earlier run that is still writing does not write into it.
  const std::string temporary = StrCat(PathOf(kSavePrefix, step), "-", std::random_device()());
  try {
    MakeDirectories(temporary);
    fill(temporary);
    SyncDirectory(temporary);
    Commit(temporary, step);
  } catch (...) {
    Quietly([&] { RemoveTree(temporary); });
    throw;
  }
  return {step, PathOf(kStepPrefix, step)};
}

// Renames the finished folder. Not every file system can replace a folder atomically, so an earlier
// checkpoint of the same step is first renamed to a name under which it is found, too.
void CheckpointStore::Commit(const std::string& temporary, int64_t step) {
  const std::string final_path = PathOf(kStepPrefix, step);
  if (!PathExists(final_path)) {
    RenameDurably(temporary, final_path);
    return;
  }
  const std::string old_path = PathOf(kOldPrefix, step);
  try {
    RenameDurably(final_path, old_path);
    RenameDurably(temporary, final_path);
  } catch (const IoError&) {
    Quietly([&] {
      if (!PathExists(final_path)) RenameDurably(old_path, final_path);
    });
    throw;
  }
  OrWarn(options_.warn, "the checkpoint is saved, but the one that it replaces is not removed",
         [&] { RemoveTree(old_path); });
}

void CheckpointStore::CleanUp() {
  if (!IsDirectory(folder_)) return;
  for (const std::string& name : ListDirectory(folder_)) {
    const std::string path = JoinPath(folder_, name);
    if (name.starts_with(kTemporaryPrefix)) RemoveTree(path);
    if (const std::optional<int64_t> step = StepOf(kOldPrefix, name)) {
      const std::string final_path = PathOf(kStepPrefix, *step);
      if (PathExists(final_path)) {
        RemoveTree(path);
      } else {
        RenameDurably(path, final_path);
      }
    }
  }
}

void CheckpointStore::RestoreLinks() {
  for (const char* name : {"latest", "best"}) {
    const std::string path = JoinPath(out_dir_, name);
    if (std::filesystem::is_symlink(path) || !IsDirectory(path)) continue;
    // A whole checkpoint: one that is in its place too, or one that was copied without it.
    Checkpoint kept;
    std::string place, problem;
    try {
      kept = Verify(path);
      place = PathOf(kStepPrefix, kept.step);
      const auto done = [](const std::string& p) { return ReadFile(JoinPath(p, kManifestName)); };
      if (PathExists(place) && done(Verify(place).path) != done(path)) {
        problem = StrCat("it is not equal to ", place);
      }
    } catch (const InputError& e) {
      problem = e.what();
    }
    if (!problem.empty()) {
      throw InputError(StrCat(path, " is a folder, where a run has a link to one of its ",
                              "checkpoints: ", problem, ". Move it away."));
    }
    if (!PathExists(place)) {
      MakeDirectories(folder_);
      RenameDurably(path, place);
      options_.warn(StrCat(path, " was a folder, and is ", place, " now"));
    } else {
      // Under the new name it is in nobody's way, however much of it a crash leaves.
      const std::string doomed = PathOf(kPrunePrefix, kept.step);
      RemoveTree(doomed);
      RenameDurably(path, doomed);
      RemoveTree(doomed);
      options_.warn(StrCat(path, " was a copy of ", place, ", and is a link to it again"));
    }
    kept.path = place;
    OrWarn(options_.warn, StrCat(path, " is not made"), [&] { Link(name, kept); });
  }
}

std::optional<Checkpoint> CheckpointStore::FindNewest(const Warn& warn) const {
  std::string damaged;
  for (const Candidate& candidate : Candidates()) {
    if (candidate.incomplete) {
      warn(StrCat("checkpoint ", candidate.path, " is incomplete (it has no ", kManifestName,
                  ") and is ignored"));
      continue;
    }
    std::string problem = candidate.problem;
    const auto unreadable = [&](const std::string& why) {
      throw IoError(StrCat(
          why, " This is the newest checkpoint, and may be good: going on from an ",
          "older one would replace it. Make ", candidate.path, " readable, or move it away."));
    };
    if (candidate.unreadable) unreadable(problem);
    if (candidate.readable) {
      try {
        CheckFiles(candidate.path, candidate.manifest, /*hashes=*/true);
        return Checkpoint{candidate.step, candidate.path};
      } catch (const IoError& error) {
        unreadable(error.what());
      } catch (const Error& error) {
        problem = error.what();
      }
    }
    warn(StrCat("checkpoint ", candidate.path, " is corrupted and skipped: ", problem));
    damaged += StrCat("\n  ", problem);
  }
  if (damaged.empty()) return std::nullopt;
  throw InputError(StrCat("no usable checkpoint in ", folder_, ":", damaged,
                          "\nRestore one from a copy, or start from scratch in another out_dir."));
}

Checkpoint CheckpointStore::Verify(const std::string& path) {
  if (!IsDirectory(path)) {
    throw InputError(StrCat("checkpoint ", path, ": there is no such folder"));
  }
  if (!PathExists(JoinPath(path, kManifestName))) {
    throw InputError(StrCat("checkpoint ", path, ": has no ", kManifestName,
                            ": it is incomplete, or not a checkpoint of Lockstep"));
  }
  const CheckpointManifest manifest = ReadManifest(path);
  CheckFiles(path, manifest, /*hashes=*/true);
  return {manifest.step, path};
}

std::vector<Checkpoint> CheckpointStore::List() const {
  std::vector<Checkpoint> checkpoints;
  for (const Candidate& candidate : Candidates()) {
    if (!candidate.incomplete) checkpoints.push_back({candidate.step, candidate.path});
  }
  return checkpoints;
}

// In the order of Candidates, keeps everything up to the last complete checkpoint of
// Options::keep, the one that was just saved, the newest pinned one, and the best.
void CheckpointStore::RemoveOld(const Checkpoint& saved) {
  const auto best = options_.keep_best ? Best() : std::nullopt;
  int64_t kept = 0;
  bool has_pinned = false;
  for (const Candidate& candidate : Candidates()) {
    const bool pinned = candidate.manifest.pinned && !std::exchange(has_pinned, true);
    if (candidate.path == saved.path) {
      ++kept;
      continue;
    }
    if (kept < options_.keep) {
      if (!candidate.readable) continue;
      try {
        CheckFiles(candidate.path, candidate.manifest, /*hashes=*/false);
        ++kept;
      } catch (const Error&) {
      }
      continue;
    }
    if (pinned || (best && candidate.path == best->path)) continue;
    if (candidate.unreadable || IsHeld(candidate.path)) continue;  // the next save will see
    // Under the new name it is no longer a checkpoint, however much of it a crash leaves.
    const std::string doomed = PathOf(kPrunePrefix, candidate.step);
    RenameDurably(candidate.path, doomed);
    RemoveTree(doomed);
  }
}

}  // namespace lockstep::models
