// Which files of text a path names.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// True for .jsonl, .ndjson and .json, also with .gz or .zst after them.
bool IsJsonLinesName(std::string_view path);
// True for these and for .txt and .text: the files that a folder is searched for.
bool IsTextName(std::string_view path);

// The files that the paths name, in the order of the paths: a file itself; "-", standard input,
// only by itself; the files that a pattern (glob(7)) matches, sorted by bytes; and the text files
// (IsTextName) in a folder and below it, sorted by bytes, without hidden ones and folders that
// `prepare` made. Links to folders are followed, but not those that lead back up. Throws InputError
// if there are none, for a file that is named twice, by whatever names, for names that differ only
// by .gz or .zst, for token files (*.bin) and for the manifest of a folder that `prepare` made.
std::vector<std::string> ListTextFiles(std::span<const std::string> paths);

}  // namespace lockstep::data
