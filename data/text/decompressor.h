// The text of a file, compressed or not, in memory that does not grow with the file.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "data/text/raw_input.h"

namespace lockstep::data {

class Decompressor {
 public:
  virtual ~Decompressor() = default;

  // Fills `out`, which is not empty, with as many bytes as are at hand, and returns their number,
  // which is 0 only at the end. Throws InputError for damaged or truncated data, and IoError.
  virtual size_t Read(std::span<char> out) = 0;
};

// Recognises gzip (RFC 1952, any number of members) and Zstandard (RFC 8878, any number of frames,
// skippable ones too) by their first bytes; anything else is text as it is. A name that ends in .gz
// or .zst promises compressed data, and its absence is an InputError. Memory: tens of KiB, for
// Zstandard also the frame's window: at most 128 MiB, or, for files that were compressed with
// `zstd --long`, at most 2 GiB, in which case `warn` is called once with the size.
std::unique_ptr<Decompressor> Decompress(RawInput* input,
                                         std::function<void(const std::string&)> warn);

// True if the name ends in .gz or .zst.
bool HasCompressedName(std::string_view path);
// "a.jsonl" of "a.jsonl.gz" and of "a.jsonl".
std::string_view WithoutCompressedSuffix(std::string_view path);

}  // namespace lockstep::data
