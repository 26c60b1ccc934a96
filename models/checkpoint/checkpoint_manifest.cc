#include "models/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <span>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/mapped_file.h"
#include "core/io/sha256.h"
#include "core/thread_pool.h"
#include "dist/content_hash.h"
#include "models/gpt/peft/adapter.h"

namespace lockstep::models {
namespace {

// 2 has a val_loss, 3 also what it was measured on, 4 may be pinned.
constexpr int kVersion = 4;

Json Body(const CheckpointManifest& manifest) {
  Json files = Json::array();
  for (const CheckpointManifest::File& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  Json body = {{"version", manifest.pinned                 ? 4
                           : !manifest.measured_on.empty() ? 3
                           : manifest.val_loss             ? 2
                                                           : 1},
               {"step", manifest.step},
               {"serial", manifest.serial},
               {"files", std::move(files)}};
  if (manifest.val_loss) body["val_loss"] = *manifest.val_loss;
  if (!manifest.measured_on.empty()) body["measured_on"] = manifest.measured_on;
  if (manifest.pinned) body["pinned"] = true;
  return body;
}

// Such a name stays inside the checkpoint's folder.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

bool SavedLater(const CheckpointManifest& a, const CheckpointManifest& b) {
  return a.serial != b.serial ? a.serial > b.serial : a.step > b.step;
}

std::optional<size_t> BestOf(std::span<const CheckpointManifest> newest_first) {
  std::optional<size_t> best;
  std::string measured_on;  // by the newest that says so
  for (size_t i = 0; i < newest_first.size(); ++i) {
    const CheckpointManifest& manifest = newest_first[i];
    if (!manifest.val_loss) continue;
    if (measured_on.empty()) measured_on = manifest.measured_on;
    if (!manifest.measured_on.empty() && manifest.measured_on != measured_on) continue;
    if (!best || *manifest.val_loss < *newest_first[*best].val_loss) best = i;
  }
  return best;
}

std::vector<bool> Retained(std::span<const CheckpointManifest> newest_first, int64_t keep,
                           bool keep_best) {
  std::vector<bool> retained(newest_first.size());
  for (size_t i = 0; i < retained.size(); ++i) {
    retained[i] = keep == 0 || static_cast<int64_t>(i) < keep;
  }
  const auto pinned = std::ranges::find_if(newest_first, &CheckpointManifest::pinned);
  if (pinned != newest_first.end()) retained[pinned - newest_first.begin()] = true;
  if (const auto best = keep_best ? BestOf(newest_first) : std::nullopt) retained[*best] = true;
  return retained;
}

std::string ManifestText(const CheckpointManifest& manifest) {
  const Json body = Body(manifest);
  return Json{{"checkpoint", body}, {"sha256", Sha256Of(body.dump())}}.dump(2) + "\n";
}

CheckpointManifest ParseManifest(std::string_view text, const std::string& source) {
  CheckpointManifest manifest;
  try {
    const Json body = ParseJson(text, source).at("checkpoint");
    if (const int64_t version = IntegerOf(body.at("version")); version > kVersion) {
      throw InputError(StrCat(source, ": made by a newer Lockstep (version ", version,
                              " of the format, this one reads ", kVersion, "); update Lockstep"));
    }
    manifest.step = IntegerOf(body.at("step"));
    manifest.serial = IntegerOf(body.at("serial"));
    if (body.contains("val_loss")) manifest.val_loss = body.at("val_loss").get<double>();
    if (body.contains("measured_on")) manifest.measured_on = body.at("measured_on");
    manifest.pinned = body.value("pinned", false);
    for (const Json& file : body.at("files")) {
      manifest.files.push_back({file.at("name"), IntegerOf(file.at("bytes")), file.at("sha256")});
    }
  } catch (const JsonError&) {
    throw InputError(StrCat(source, ": damaged: a field is missing or has the wrong type"));
  }
  if (ManifestText(manifest) != text) {
    throw InputError(StrCat(source, ": damaged: its own SHA-256 or its layout is wrong"));
  }
  for (const CheckpointManifest::File& file : manifest.files) {
    if (!IsPlainFileName(file.name)) {
      throw InputError(StrCat(source, ": ", Quoted(file.name), " is not a valid file name"));
    }
  }
  return manifest;
}

void CheckFiles(const std::string& path, const CheckpointManifest& manifest, bool hashes) {
  for (const CheckpointManifest::File& file : manifest.files) {
    const std::string name = JoinPath(path, file.name);
    if (!PathExists(name)) throw InputError(StrCat(name, " is missing"));
    const int64_t bytes = FileSize(name);
    if (bytes != file.bytes) {
      throw InputError(StrCat(name, bytes < file.bytes ? " is truncated: it has " : " has ", bytes,
                              " bytes, ", file.bytes, " were written"));
    }
  }
  if (!hashes) return;
  std::vector<char> good(manifest.files.size());
  ParallelFor(std::ssize(good), 1, [&](int64_t i, int64_t) {
    const CheckpointManifest::File& file = manifest.files[i];
    good[i] = Sha256OfFile(JoinPath(path, file.name)) == file.sha256;
  });
  if (const auto bad = std::ranges::find(good, 0); bad != good.end()) {
    const std::string name = JoinPath(path, manifest.files[bad - good.begin()].name);
    throw InputError(StrCat(name, " is corrupted: its SHA-256 differs from the one in DONE"));
  }
}

namespace {

uint64_t HashText(std::string_view text, uint64_t seed) {
  return dist::HashBytes(std::as_bytes(std::span(text)), seed);
}

// The hash of the manifest, if there is one.
std::optional<uint64_t> HashOfManifest(const std::string& folder) {
  const std::string list = JoinPath(folder, kManifestName);
  if (!PathExists(list)) return std::nullopt;
  return dist::HashBytes(MappedFile(list).bytes());
}

// Those of the weights, or the others that matter: *.json and an adapter's tensors.
std::vector<std::string> FilesOf(const std::string& folder, bool weights) {
  std::vector<std::string> names = ListDirectory(folder);
  std::erase_if(names, [&](const std::string& name) {
    const bool adapter = name == kAdapterTensors;
    return weights ? adapter || !name.ends_with(".safetensors")
                   : !adapter && !name.ends_with(".json");
  });
  return names;
}

uint64_t HashOfFiles(const std::vector<std::string>& names, const std::string& folder,
                     uint64_t hash) {
  for (const std::string& name : names) {
    hash = HashText(name, hash);
    hash = dist::HashBytes(MappedFile(JoinPath(folder, name)).bytes(), hash);
  }
  return hash;
}

// What the files' own shapes leave open, too: how many heads share the rows of a matrix.
uint64_t HashOfShape(const std::string& folder, uint64_t hash) {
  const std::string file = JoinPath(folder, "config.json");
  if (!PathExists(file)) return hash;
  const Json config = ParseJson(ReadFile(file), file);
  for (const char* key :
       {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "intermediate_size", "n_embd", "n_layer", "n_head",
        "n_inner", "num_experts", "num_local_experts", "num_experts_per_tok"}) {
    if (config.is_object() && config.contains(key)) {
      hash = HashText(StrCat(key, "=", config[key].dump(), "\n"), hash);
    }
  }
  return hash;
}

// Changes with the files, without being made of what they hold.
std::string StampOf(const std::vector<std::string>& names, const std::string& folder) {
  namespace fs = std::filesystem;
  std::string stamp = fs::canonical(folder).string();
  for (const std::string& name : names) {
    const fs::path path = fs::path(folder) / name;
    std::error_code ignored;  // reading the file will say what is wrong with it
    stamp += StrCat("\n", name, " ", fs::file_size(path, ignored), " ",
                    fs::last_write_time(path, ignored).time_since_epoch().count());
  }
  return stamp;
}

}  // namespace

uint64_t HashOfWeights(const std::string& folder) {
  if (const auto hash = HashOfManifest(folder)) return *hash;
  static std::mutex mutex;
  static std::map<std::string, uint64_t> known;  // by StampOf
  const bool is_folder = IsDirectory(folder);
  const std::vector<std::string> names =
      is_folder ? FilesOf(folder, /*weights=*/true) : std::vector{BaseName(folder)};
  const std::lock_guard lock(mutex);
  const std::string stamp = StampOf(names, is_folder ? folder : ParentPath(folder));
  auto it = known.find(stamp);
  if (it == known.end()) {
    // A file (GGUF) has the shape as well, and any name.
    const uint64_t hash =
        is_folder ? HashOfFiles(names, folder, 0) : dist::HashBytes(MappedFile(folder).bytes());
    it = known.emplace(stamp, hash).first;
  }
  return is_folder ? HashOfShape(folder, it->second) : it->second;
}

uint64_t HashOfContent(const std::string& folder) {
  if (const auto hash = HashOfManifest(folder)) return *hash;
  if (!IsDirectory(folder)) return HashOfWeights(folder);
  return HashOfFiles(FilesOf(folder, /*weights=*/false), folder, HashOfWeights(folder));
}

}  // namespace lockstep::models
