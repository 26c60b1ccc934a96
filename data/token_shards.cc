#include "data/token_shards.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/io/file.h"

namespace lockstep::data {
namespace {

std::string WorkingDirectory() {
  std::error_code ignored;
  return std::filesystem::current_path(ignored).string();
}

}  // namespace

bool IsPattern(const std::string& path) {
  return path.find_first_of("*?[") != std::string::npos && !PathExists(path);
}

std::vector<std::string> ExpandPattern(const std::string& pattern) {
  if (!IsPattern(pattern)) {
    if (PathExists(pattern)) return {pattern};
    throw InputError(StrCat(pattern, ": no such file (seen from ", WorkingDirectory(), ")"));
  }
  glob_t matches{};
  const int rc = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches);
  std::vector<std::string> paths(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  if (rc == GLOB_NOSPACE) throw std::bad_alloc();
  if (paths.empty()) {
    throw InputError(StrCat("no file matches ", pattern, " (seen from ", WorkingDirectory(), ")"));
  }
  std::ranges::sort(paths);
  return paths;
}

bool HasMatch(const std::string& pattern) {
  glob_t matches{};
  const int rc = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches);
  globfree(&matches);
  return rc == 0;
}

Split SplitOfFileName(std::string_view path) {
  std::string_view name = path.substr(path.rfind('/') + 1);
  name = name.substr(0, name.rfind('.'));
  const size_t number = name.find_last_not_of("0123456789");
  if (number != std::string_view::npos && name[number] == '_' && number + 1 < name.size()) {
    name = name.substr(0, number);
  }
  name = name.substr(name.rfind('_') + 1);
  return name == "train" ? Split::kTrain : name == "val" ? Split::kVal : Split::kNone;
}

TokenShards OpenTokenShards(const std::vector<std::string>& paths,
                            std::optional<int64_t> vocab_size) {
  const auto has = [&](Split split) {
    return std::ranges::find(paths, split, SplitOfFileName) != paths.end();
  };
  const bool both = has(Split::kTrain) && has(Split::kVal);
  if (both && has(Split::kNone)) {
    const auto odd = std::ranges::find(paths, Split::kNone, SplitOfFileName);
    throw InputError(StrCat("there are token files for training and for validation, and ", *odd,
                            ", whose name tells neither; narrow the pattern"));
  }
  TokenShards shards;
  std::shared_ptr<const TokenFile> first;
  for (const std::string& path : paths) {
    auto file = std::make_shared<const TokenFile>(path, vocab_size);
    if (first == nullptr) first = file;
    if (file->format() != first->format()) {
      throw InputError(StrCat(path, " is a ", Name(file->format()), " token file, but ",
                              first->path(), " is a ", Name(first->format()),
                              " one; narrow the pattern to files of one kind"));
    }
    const bool val = both && SplitOfFileName(path) == Split::kVal;
    (val ? shards.val : shards.train).push_back(std::move(file));
  }
  return shards;
}

}  // namespace lockstep::data
