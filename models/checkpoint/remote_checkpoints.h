// The checkpoints of a run elsewhere, laid out as in its folder:
//
//   checkpoints/step-00001000/{files ..., DONE}
//
// DONE is written last and removed first: without it there is no checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint/checkpoint_manifest.h"
#include "models/store/object_store.h"

namespace lockstep::models {

struct RemoteCheckpoint {
  std::string name;  // "step-00001000"
  CheckpointManifest manifest;
  std::string done;  // its DONE
  int64_t bytes() const;
};

class RemoteCheckpoints {
 public:
  // The store outlives it.
  explicit RemoteCheckpoints(ObjectStore& store) : store_(store) {}

  // The complete ones, most recently saved first.
  std::vector<RemoteCheckpoint> List();
  // The text of one of its files. InputError if that is missing, or not what was written.
  std::string ReadFileOf(const RemoteCheckpoint& checkpoint, const std::string& file);

  // Copies the folder of a checkpoint, and reads back what arrived: IoError where that differs from
  // what the run has written. One that is there under this name is replaced: what has not changed
  // of it is not copied again.
  void Upload(const std::string& folder);
  // Copies it into an empty folder. InputError if a file is missing or not what was written.
  void Download(const RemoteCheckpoint& checkpoint, const std::string& folder);
  // Removes what Retained leaves out, and incomplete ones.
  void RemoveOld(int64_t keep, bool keep_best);

 private:
  std::string NameOf(const std::string& checkpoint, const std::string& file) const;
  std::optional<std::string> Read(const std::string& name);
  std::optional<std::string> Sha256Of(const std::string& name);
  void Copy(const std::string& path, const std::string& name, const std::string& sha256);

  ObjectStore& store_;
};

}  // namespace lockstep::models
