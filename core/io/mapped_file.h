// A file as read-only memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lockstep {

// Maps a regular file read-only; an empty file gives an empty span. Pages are read on first use and
// shared with other processes. If another program truncates the file meanwhile, reads raise SIGBUS,
// so map only files that are replaced by rename, as all of Lockstep's are. IoError as in
// core/io/file.h.
class MappedFile {
 public:
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace lockstep
