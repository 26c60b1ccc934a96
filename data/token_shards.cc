#include "data/token_shards.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <map>

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
  constexpr std::string_view kSeparators = "_-.";
  constexpr std::string_view kHeldOut[] = {"val", "valid", "validation", "dev", "eval"};
  std::string_view name = path.substr(path.rfind('/') + 1);
  // The last word that tells; behind it there may be numbers: train_000001, train-00000-of-00002.
  while (!name.empty()) {
    const size_t before = name.find_last_of(kSeparators) + 1;  // 0 without one
    const std::string_view word = name.substr(before);
    if (word == "train" || word == "training") return Split::kTrain;
    if (std::ranges::find(kHeldOut, word) != std::end(kHeldOut)) return Split::kVal;
    name = name.substr(0, before == 0 ? 0 : before - 1);
  }
  return Split::kNone;
}

std::vector<Split> SplitsOf(const std::vector<std::string>& paths) {
  std::vector<Split> splits;
  for (const std::string& path : paths) splits.push_back(SplitOfFileName(path));
  if (std::ranges::count(splits, Split::kNone) < std::ssize(splits) || paths.empty()) return splits;
  // By folders, of which those that hold all of them tell nothing.
  size_t common = paths[0].size();
  for (const std::string& path : paths) {
    const auto [end, other] = std::ranges::mismatch(paths[0], path);
    common = std::min<size_t>(common, end - paths[0].begin());
  }
  common = paths[0].substr(0, common).rfind('/') + 1;  // 0 without one
  for (size_t i = 0; i < paths.size(); ++i) {
    std::string_view path = paths[i];
    while (splits[i] == Split::kNone && path.find('/', common) != path.npos) {
      path = path.substr(0, path.rfind('/'));
      splits[i] = SplitOfFileName(path);
    }
  }
  if (std::ranges::count(splits, Split::kNone) > 0) splits.assign(paths.size(), Split::kNone);
  return splits;
}

TokenShards OpenTokenShards(const std::vector<std::string>& paths,
                            std::optional<int64_t> vocab_size, std::span<const FileContent> known) {
  const std::vector<Split> splits = SplitsOf(paths);
  const auto has = [&](Split split) { return std::ranges::count(splits, split) > 0; };
  const bool both = has(Split::kTrain) && has(Split::kVal);
  if (has(Split::kNone) && (has(Split::kTrain) || has(Split::kVal))) {
    const auto odd = std::ranges::find(splits, Split::kNone) - splits.begin();
    throw InputError(StrCat("there are token files whose names tell that they are for ",
                            both                 ? "training or for validation"
                            : has(Split::kTrain) ? "training"
                                                 : "validation",
                            ", and ", paths[odd],
                            ", whose name tells neither; narrow the pattern"));
  }
  TokenShards shards;
  std::shared_ptr<const TokenFile> first;
  std::map<std::filesystem::path, std::string> named;  // by what is behind links
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string& path = paths[i];
    const auto [before, is_new] = named.try_emplace(std::filesystem::weakly_canonical(path), path);
    if (!is_new) {
      throw InputError(StrCat(path, " is the same file as ", before->second,
                              ", whose tokens would count twice; narrow the pattern"));
    }
    auto file = std::make_shared<const TokenFile>(path, vocab_size, known);
    if (first == nullptr) first = file;
    if (file->format() != first->format()) {
      throw InputError(StrCat(path, " is a ", Name(file->format()), " token file, but ",
                              first->path(), " is a ", Name(first->format()),
                              " one; narrow the pattern to files of one kind"));
    }
    const bool val = both && splits[i] == Split::kVal;
    (val ? shards.val : shards.train).push_back(std::move(file));
  }
  return shards;
}

}  // namespace lockstep::data
