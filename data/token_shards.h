// Which token files a path or pattern names, and which of them are for validation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_file.h"

namespace lockstep::data {

// True if the path contains *, ? or [ and no file has exactly that name.
bool IsPattern(const std::string& path);

// The files that a pattern (glob(7)) matches, sorted by bytes, or the path itself if it is not a
// pattern. If there is no such file, throws InputError naming the working directory.
std::vector<std::string> ExpandPattern(const std::string& pattern);

enum class Split { kNone, kTrain, kVal };

// By the last word of the name that tells the split: train or training, and val, valid, validation,
// dev or eval. So do llm.c's names, `name_train_000001.bin` and `name_val_000000.bin`, and
// nanoGPT's, `train.bin` and `val.bin`.
Split SplitOfFileName(std::string_view path);

// The split of each file: by its name; or if no name tells, by the nearest folder that does, below
// the one that holds them all: train/000.bin and val/000.bin.
std::vector<Split> SplitsOf(const std::vector<std::string>& paths);

// The open token files of a data set, all of one format.
struct TokenShards {
  std::vector<std::shared_ptr<const TokenFile>> train;
  // Empty unless both splits occur; otherwise all files are in `train`.
  std::vector<std::shared_ptr<const TokenFile>> val;
};

// Whether a file matches the pattern.
bool HasMatch(const std::string& pattern);

// Throws InputError as TokenFile does, for files of different formats, and if only some names tell
// the split.
TokenShards OpenTokenShards(const std::vector<std::string>& paths,
                            std::optional<int64_t> vocab_size,
                            std::span<const FileContent> known = {});

}  // namespace lockstep::data
