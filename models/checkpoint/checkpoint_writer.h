// What fills a checkpoint while it is being saved.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/io/file.h"
#include "core/io/safetensors_writer.h"
#include "models/checkpoint/checkpoint_manifest.h"

namespace lockstep::models {

// CheckpointStore::Save and Join make it. Each file is on the disk when its call returns. Names
// must be plain, distinct and not "DONE" (ArgumentError).
class CheckpointWriter {
 public:
  void AddFile(const std::string& name, std::string_view contents);
  void AddFile(const std::string& name, const std::function<void(FileWriter&)>& write);
  void AddSafetensors(const std::string& name, std::span<const SafetensorsItem> tensors,
                      const std::map<std::string, std::string>& metadata = {});

  // ---- What other ranks add to the same checkpoint ----
  // The name of the folder, for their CheckpointStore::Join.
  std::string folder_name() const { return BaseName(folder_); }
  // On such a rank: what it has added.
  const CheckpointManifest& added() const { return *manifest_; }
  // Lists the files that another rank has added; their names must be new.
  void Adopt(const CheckpointManifest& added);

 private:
  friend class CheckpointStore;
  CheckpointWriter(std::string folder, CheckpointManifest* manifest)
      : folder_(std::move(folder)), manifest_(manifest) {}
  void CheckNew(const std::string& name) const;

  std::string folder_;
  CheckpointManifest* manifest_;
};

}  // namespace lockstep::models
