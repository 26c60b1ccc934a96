// DONE: the last file written into a checkpoint. It lists the others, so that a checkpoint itself
// shows whether it is complete.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
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
  std::string measured_on;         // tells what val_loss can be compared with; "" in older ones
  bool pinned = false;             // kept until a newer one is, whatever the limits
  std::vector<File> files;
};

// Whether a checkpoint was saved after another of the same run.
bool SavedLater(const CheckpointManifest& a, const CheckpointManifest& b);
// Which of them has the lowest validation loss, of those that can be compared with the newest that
// has one; none if none has. `newest_first`: in the order of SavedLater.
std::optional<size_t> BestOf(std::span<const CheckpointManifest> newest_first);
// Whether each of them is one of the newest `keep` (0: all), the newest pinned one, or with
// `keep_best` the best.
std::vector<bool> Retained(std::span<const CheckpointManifest> newest_first, int64_t keep,
                           bool keep_best);

// JSON that carries its own SHA-256. Deterministic.
std::string ManifestText(const CheckpointManifest& manifest);
// The inverse. InputError naming `source` for any text that ManifestText did not make, even if a
// single byte differs.
CheckpointManifest ParseManifest(std::string_view text, const std::string& source);

// InputError naming the first file of the folder that is missing, or does not have the size, or
// with `hashes` the SHA-256, of what was written.
void CheckFiles(const std::string& folder, const CheckpointManifest& manifest, bool hashes);

// Identifies the weights of a folder. For a checkpoint it is the hash of the manifest, which has
// the hashes of all files; in a folder without one it is that of all *.safetensors, except an
// adapter's, and of the model's shape in config.json: tokenizers, templates and pages may change. A
// process reads a folder only once, as long as its files stay as they are. Throws IoError, and
// InputError for a config.json that is not JSON.
uint64_t HashOfWeights(const std::string& folder);
// HashOfWeights, extended to every *.json and an adapter's tensors. Ranks compare it to check that
// they start from the same folder.
uint64_t HashOfContent(const std::string& folder);

}  // namespace lockstep::models
