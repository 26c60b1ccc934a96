#include "data/text/text_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/io/file.h"
#include "data/text/decompressor.h"
#include "data/token_shards.h"

namespace lockstep::data {
namespace {

std::vector<std::string> TextFilesBelow(const std::string& folder) {
  std::vector<std::string> files;
  for (const std::string& name : ListDirectory(folder)) {
    if (name.starts_with('.')) continue;
    const std::string path = JoinPath(folder, name);
    if (!IsDirectory(path)) {
      if (IsTextName(name)) files.push_back(path);
    } else if (!std::filesystem::is_symlink(path)) {  // a link could lead back up
      const std::vector<std::string> below = TextFilesBelow(path);
      files.insert(files.end(), below.begin(), below.end());
    }
  }
  return files;
}

std::vector<std::string> FilesOf(const std::string& path) {
  if (path == "-") return {path};
  if (IsPattern(path) || !IsDirectory(path)) return ExpandPattern(path);
  std::vector<std::string> files = TextFilesBelow(path);
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
  std::set<std::string_view> seen;
  for (const std::string& file : files) {
    if (!seen.insert(file).second) {
      throw InputError(StrCat(file, ": this file is named twice; name it once"));
    }
    if (file.ends_with(".bin")) {
      throw InputError(StrCat(file, ": this is a token file by its name, and text is wanted here"));
    }
  }
  if (seen.contains("-") && files.size() > 1) {
    throw InputError("standard input (-) must be the only source: it cannot be opened again");
  }
  return files;
}

}  // namespace lockstep::data
