#include "models/checkpoint/hf_model.h"

#include <algorithm>

#include "core/io/file.h"
#include "core/io/sha256.h"
#include "models/checkpoint/checkpoint_manifest.h"
#include "models/checkpoint/consolidate.h"

namespace lockstep::models {
namespace {

constexpr char kRunFiles[] = "run_files.json";

std::string FolderIn(const std::string& out_dir) { return JoinPath(out_dir, "model"); }

// InputError unless a run has made the folder, and it is unchanged.
int64_t ReadOwn(const std::string& out_dir) {
  const std::string folder = FolderIn(out_dir), list = JoinPath(folder, kRunFiles);
  if (!PathExists(JoinPath(out_dir, "config.toml")) || !PathExists(list)) {
    throw InputError(StrCat(folder, " exists, and no run in ", out_dir, " has made it"));
  }
  const CheckpointManifest made = ParseManifest(ReadFile(list, int64_t{64} << 20), list);
  for (const std::string& name : ListDirectory(folder)) {
    const auto file = std::ranges::find(made.files, name, &CheckpointManifest::File::name);
    if (name == kRunFiles || file != made.files.end()) continue;
    throw InputError(StrCat(JoinPath(folder, name), " was not written by the run"));
  }
  CheckFiles(folder, made, /*hashes=*/true);
  return made.step;
}

void ListFiles(const std::string& folder, int64_t step) {
  CheckpointManifest made{.step = step};
  for (const std::string& name : ListDirectory(folder)) {
    const std::string file = JoinPath(folder, name);
    made.files.push_back({name, FileSize(file), Sha256OfFile(file)});
  }
  WriteFileAtomically(JoinPath(folder, kRunFiles), ManifestText(made));
}

// Of the folder, if there is one: its new name.
std::string MoveAside(const std::string& out_dir) {
  const std::string folder = FolderIn(out_dir), old = JoinPath(out_dir, ".old-model");
  RemoveTree(old);
  if (PathExists(folder)) RenameDurably(folder, old);
  return old;
}

}  // namespace

std::optional<int64_t> StepOfHfModel(const std::string& out_dir) {
  if (!PathExists(FolderIn(out_dir))) return std::nullopt;
  try {
    return ReadOwn(out_dir);
  } catch (const Error&) {  // also of what cannot be read, or is no folder
    return std::nullopt;
  }
}

std::optional<int64_t> CheckHfModel(const std::string& out_dir) {
  if (!PathExists(FolderIn(out_dir))) return std::nullopt;
  try {
    return ReadOwn(out_dir);
  } catch (const Error& e) {
    throw InputError(StrCat(e.what(),
                            ". A run that saves checkpoints in parts ends by putting its "
                            "model into ",
                            FolderIn(out_dir),
                            ": move what is there elsewhere, or choose another --out_dir"));
  }
}

void WriteHfModel(const Checkpoint& checkpoint, const std::string& out_dir) {
  CheckHfModel(out_dir);
  const std::string made = JoinPath(out_dir, ".tmp-model");  // a name that nobody else gives
  RemoveTree(made);
  std::string old;
  try {
    Consolidate(checkpoint.path, made);
    ListFiles(made, checkpoint.step);
    old = MoveAside(out_dir);
    RenameDurably(made, FolderIn(out_dir));
  } catch (...) {
    RemoveTree(made);
    throw;
  }
  RemoveTree(old);
}

std::optional<int64_t> RemoveHfModel(const std::string& out_dir) {
  const std::optional<int64_t> step = StepOfHfModel(out_dir);
  if (step) RemoveTree(MoveAside(out_dir));
  return step;
}

}  // namespace lockstep::models
