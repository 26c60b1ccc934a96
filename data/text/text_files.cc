#include "data/text/text_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "core/error.h"
#include "core/io/file.h"
#include "core/system/shell_word.h"
#include "data/prepare/manifest.h"
#include "data/text/decompressor.h"
#include "data/token_shards.h"

namespace lockstep::data {
namespace {

// What a training run writes into its folder, of which some is text by its name.
bool IsOfARun(std::string_view name) {
  constexpr std::string_view kNames[] = {"checkpoints",   "latest",      "best",
                                         "model",         "flight",      "metrics.jsonl",
                                         "samples.jsonl", "kernels.json"};
  return std::ranges::find(kNames, name) != std::end(kNames) ||
         (name.starts_with("trace-") && name.ends_with(".json"));
}

// Collects the text files below folders, each of which is read once, by whatever links.
class FolderReader {
 public:
  // `is_prepared`: `prepare` made the folder, among its sources.
  void Read(const std::string& folder, bool is_prepared) {
    seen_.insert(std::filesystem::canonical(folder));
    const bool has_run = PathExists(JoinPath(folder, "run.lock"));
    for (const std::string& name : ListDirectory(folder)) {
      if (name.starts_with('.')) continue;
      if (has_run && IsOfARun(name)) continue;
      if (is_prepared && (name == kManifestName || name == "tokenizer.json")) continue;
      const std::string path = JoinPath(folder, name);
      if (!IsDirectory(path)) {
        if (IsTextName(name)) files_.push_back(path);
      } else if (std::filesystem::is_symlink(path)) {
        links_.push_back(path);
      } else {
        Enter(path);
      }
    }
  }

  // Links wait until all folders have been read under their own names.
  std::vector<std::string> Finish() {
    for (size_t i = 0; i < links_.size(); ++i) {
      // Reading may add links.
      const std::string link = links_[i];
      const auto target = std::filesystem::canonical(link);
      // One that leads back up would bring in what nobody has named.
      const bool leads_up =
          std::ranges::any_of(seen_, [&](const auto& seen) { return IsInside(seen, target); });
      if (!leads_up) Enter(link);
    }
    return std::move(files_);
  }

 private:
  static bool IsInside(const std::filesystem::path& path, const std::filesystem::path& folder) {
    return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
           folder.end();
  }

  void Enter(const std::string& folder) {
    // What prepare has made is no source.
    if (!HasManifest(folder)) Read(folder, /*is_prepared=*/false);
  }

  std::set<std::filesystem::path> seen_;
  std::vector<std::string> files_, links_;
};

std::vector<std::string> FilesOf(const std::string& path) {
  if (path == "-") return {path};
  if (IsPattern(path) || !IsDirectory(path)) return ExpandPattern(path);
  FolderReader reader;
  reader.Read(path, HasManifest(path));
  std::vector<std::string> files = reader.Finish();
  if (files.empty()) {
    throw InputError(StrCat(path,
                            ": no text file in this folder or below it: expected .txt, .text, "
                            ".jsonl, .ndjson or .json, also with .gz or .zst after it; name other "
                            "files by a pattern such as '",
                            JoinPath(path, "*"), "'"));
  }
  std::ranges::sort(files);
  return files;
}

// No text may be read twice: under two names, or compressed and not.
void RequireDistinct(const std::vector<std::string>& files) {
  std::map<std::pair<dev_t, ino_t>, std::string_view> by_inode;
  std::map<std::string, std::string_view> by_name;
  for (const std::string& file : files) {
    struct stat status;
    if (file == "-" || stat(file.c_str(), &status) != 0) continue;  // opening it will fail
    const auto [same, is_new] = by_inode.try_emplace({status.st_dev, status.st_ino}, file);
    if (!is_new) {
      throw InputError(StrCat(file, ": this file is named twice",
                              same->second == file ? "" : StrCat(", as ", same->second, ", too"),
                              "; name it once"));
    }
    const std::filesystem::path name(std::string(WithoutCompressedSuffix(file)));
    const auto [other, differs] = by_name.try_emplace(name.lexically_normal().string(), file);
    if (!differs) {
      throw InputError(StrCat(other->second, " and ", file, " differ only by .gz or .zst, so they ",
                              "seem to hold the same text; name one of them, or rename it"));
    }
  }
}

}  // namespace

bool IsJsonLinesName(std::string_view path) {
  const std::string_view name = WithoutCompressedSuffix(path);
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") || name.ends_with(".json");
}

bool IsTextName(std::string_view path) {
  const std::string_view name = WithoutCompressedSuffix(path);
  return IsJsonLinesName(path) || name.ends_with(".txt") || name.ends_with(".text");
}

std::vector<std::string> ListTextFiles(std::span<const std::string> paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    const std::vector<std::string> more = FilesOf(path);
    files.insert(files.end(), more.begin(), more.end());
  }
  RequireDistinct(files);
  for (const std::string& file : files) {
    if (file.ends_with(".bin")) {
      throw InputError(StrCat(
          file, ": this has the name of a token file, but text is expected here; to ",
          "train on it, name no other kinds of files: train_gpt --data.path=", ShellWord(file)));
    }
    if (const std::string folder = ParentPath(file);
        BaseName(file) == kManifestName && HasManifest(folder)) {
      throw InputError(
          StrCat(file, ": this is the manifest of a folder that prepare made, not ",
                 "text; to train on the folder: train_gpt --data.path=", ShellWord(folder)));
    }
  }
  if (files.size() > 1 && std::ranges::find(files, "-") != files.end()) {
    throw InputError("standard input (-) must be the only source: it cannot be opened again");
  }
  return files;
}

}  // namespace lockstep::data
