// Which token files a path or pattern names, and which of them are for validation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_file.h"

namespace lockstep::data {

// True if the path contains *, ? or [ and no file of that very name exists.
bool IsPattern(const std::string& path);

// The files that a pattern (glob(7)) matches, sorted by bytes; a path that is no pattern gives
// itself. Throws InputError where nothing matches or the file is missing, naming the working
// directory.
std::vector<std::string> ExpandPattern(const std::string& pattern);

enum class Split { kNone, kTrain, kVal };

// By llm.c's names `name_train_000001.bin`, `name_val_000000.bin`, or nanoGPT's `train.bin`,
// `val.bin`.
Split SplitOfFileName(std::string_view path);

// The token files of a data set, opened. All of one format.
struct TokenShards {
  std::vector<std::shared_ptr<const TokenFile>> train;
  // Empty unless the files are of both splits; otherwise they are all in `train`.
  std::vector<std::shared_ptr<const TokenFile>> val;
};

// Throws InputError as TokenFile does, for files of several formats, and where some names tell the
// split and others do not.
TokenShards OpenTokenShards(const std::string& pattern, std::optional<int64_t> vocab_size);

}  // namespace lockstep::data
