// DONE: the last file written into a checkpoint. It lists the others, so that a checkpoint itself
// shows whether it is complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::models {

inline constexpr char kManifestName[] = "DONE";

struct CheckpointManifest {
  struct File {
    std::string name;  // in the checkpoint's folder
    int64_t bytes = 0;
    std::string sha256;
  };
  int64_t step = 0;
  // Counts the saves of a run folder. Tells the newest checkpoint even when a run went back to an
  // older step and saved again from there.
  int64_t serial = 0;
  std::optional<double> val_loss;  // of its weights, if it was measured; finite
  std::vector<File> files;
};

// JSON that carries its own SHA-256. Deterministic.
std::string ManifestText(const CheckpointManifest& manifest);
// The inverse. InputError naming `source` for any text that ManifestText did not make, even if a
// single byte differs.
CheckpointManifest ParseManifest(std::string_view text, const std::string& source);

// Tells apart what folders hold from which training can start, by which ranks compare them. Of a
// checkpoint it is that of the manifest, which has the hashes of all files; in a folder without one
// all *.safetensors and *.json are read. IoError.
uint64_t HashOfContent(const std::string& folder);

}  // namespace lockstep::models
