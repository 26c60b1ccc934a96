// Where documents begin in a token file.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/io/mapped_file.h"
#include "data/file_content.h"

namespace lockstep::data {

// "x.idx" for the token file "x.bin".
std::string IndexPathOf(const std::string& token_file);

// A file of uint64, little-endian, in ascending order: the positions in the token file of each
// document's first token (or of the end-of-text token before it, if the format has one there). A
// document that began in the previous file has no entry.
class DocumentIndex {
 public:
  // Maps the file and checks it, unless its content is among the `known`: InputError unless the
  // positions are ascending and below `tokens`.
  DocumentIndex(std::string path, int64_t tokens, std::span<const FileContent> known = {});

  std::span<const uint64_t> starts() const { return starts_; }
  const FileContent& content() const { return content_; }

 private:
  MappedFile file_;
  FileContent content_;
  std::span<const uint64_t> starts_;
};

}  // namespace lockstep::data
