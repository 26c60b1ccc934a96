// The bytes of a file or of standard input as they lie there, compressed or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/sha256.h"

namespace lockstep::data {

// Reads through a buffer of fixed size and hashes what it reads.
class RawInput {
 public:
  // A regular file, or "-": standard input. IoError if it cannot be opened.
  explicit RawInput(std::string path);

  // The bytes that come next: at least `least` of them (at most 64 can be asked for), fewer only at
  // the end of the input. Valid until the next call. IoError if reading fails.
  std::span<const char> Peek(size_t least = 1);
  // Advances by n <= Peek().size() bytes.
  void Skip(size_t n) { begin_ += n; }

  const std::string& path() const { return path_; }
  // Bytes read so far, including those that are only buffered.
  int64_t bytes_read() const { return bytes_read_; }
  // The hash of the bytes read so far; of the whole input once Peek returns nothing.
  std::string Sha256Hex() const { return hash_.HexDigest(); }

 private:
  std::string path_;
  std::optional<FileDescriptor> file_;  // none: standard input
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool at_end_ = false;
  int64_t bytes_read_ = 0;
  Sha256 hash_;
};

}  // namespace lockstep::data
