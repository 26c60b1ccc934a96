#include "models/checkpoint/checkpoint_writer.h"

#include "core/error.h"
#include "core/io/json.h"

namespace lockstep::models {

void CheckpointWriter::AddFile(const std::string& name, std::string_view contents) {
  AddFile(name, [&](FileWriter& file) { file.Write(contents); });
}

void CheckpointWriter::AddFile(const std::string& name,
                               const std::function<void(FileWriter&)>& write) {
  LS_CHECK(!name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
               name != kManifestName,
           "checkpoint: ", Quoted(name), " cannot be the name of a file in it");
  CheckNew(name);
  FileWriter file(JoinPath(folder_, name),
                  {.mode = FileWriterOptions::Mode::kCreateNew, .sha256 = true});
  write(file);
  file.Sync();
  file.Close();
  manifest_->files.push_back({name, file.bytes(), file.Sha256Hex()});
}

void CheckpointWriter::CheckNew(const std::string& name) const {
  for (const CheckpointManifest::File& file : manifest_->files) {
    LS_CHECK(file.name != name, "checkpoint: the file ", Quoted(name), " is added twice");
  }
}

void CheckpointWriter::Adopt(const CheckpointManifest& added) {
  for (const CheckpointManifest::File& file : added.files) {
    CheckNew(file.name);
    manifest_->files.push_back(file);
  }
}

void CheckpointWriter::AddSafetensors(const std::string& name,
                                      std::span<const SafetensorsItem> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  AddFile(name, [&](FileWriter& file) { WriteSafetensors(file, tensors, metadata); });
}

}  // namespace lockstep::models
