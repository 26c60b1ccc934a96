// What the files of a run's data hold: found by reading all of their bytes, and once found, known
// as long as the files' sizes, times and inodes stay.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/mapped_file.h"

namespace lockstep::data {

struct FileContent {
  std::string path;    // as it was opened
  std::string sha256;  // of the SHA-256 of each 8 MiB
  // The largest token of a token file; 0 for other files.
  int64_t largest = 0;
  // Size, times and inode, and how the bytes were read; it is different if they may have changed.
  std::string stamp;
  // The file had changed so shortly before that another change could leave its times as they are.
  bool recent = false;
};

// One line, without the path.
std::string ToLine(const FileContent& content);
// The inverse. InputError naming `source` for any other text.
FileContent ParseFileContent(std::string_view line, const std::string& source);

// The stamp of a file as it is now, all that is known without reading it. `kind` says how its bytes
// are read. IoError if there is no such file.
FileContent StampOf(const std::string& path, std::string_view kind);
// Completes `content`: from the element of `known` with the same stamp, and returns true; or from
// the bytes, on all threads. `largest`, if set, returns the largest token of a part of them, whose
// size is a multiple of 8 bytes except for the last part.
bool FindContent(std::span<const FileContent> known, std::span<const std::byte> bytes,
                 int64_t (*largest)(std::span<const std::byte>), FileContent* content);

}  // namespace lockstep::data
