// Reading GGUF files.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "core/shape.h"
#include "core/tensor.h"
#include "models/gpt/gguf/gguf_format.h"
#include "models/gpt/hf/fields.h"

namespace lockstep::models {

// A tensor of a file. `bytes` lies inside the file's mapping, in row-major order, and is valid as
// long as a GgufFile handle of the file lives.
struct GgufEntry {
  std::string name;
  GgufType type = GgufType::kF32;
  Shape shape =
      {};  // outermost dimension first, as everywhere in Lockstep; the file has the reverse
  std::span<const std::byte> bytes = {};

  // A copy on the CPU, of GgufDType(type).
  Tensor ToTensor() const;
  // Slice i of the outermost dimension.
  GgufEntry Slice(int64_t i) const;
};

// A file, checked as a whole before anything of it is handed out: sizes that end within the file
// and do not overflow, keys and tensors without namesakes, types that Lockstep reads, rows of whole
// blocks, and tensors that follow one another at their alignment. Anything else is an InputError
// that names file and key or tensor; so are files of version 1, big-endian ones, and one of several
// parts of a model. Copies share the mapping.
class GgufFile {
 public:
  // Whether the path is that of a file, not of a folder, that begins with GGUF or is called so.
  static bool Is(const std::string& path);
  // Maps the file; IoError if it cannot be read.
  static GgufFile Open(const std::string& path);
  // Parses bytes that the caller keeps alive. `source` names them in messages.
  static GgufFile Parse(std::span<const std::byte> file, std::string source);

  const std::string& source() const;
  // An f32 has the shortest decimal number that rounds to it, so that 1e-5 stays 1e-5.
  Fields metadata() const;
  // In the order of their names.
  const std::map<std::string, GgufEntry, std::less<>>& tensors() const;
  // nullptr if there is none.
  const GgufEntry* Find(std::string_view name) const;
  // InputError if there is none.
  const GgufEntry& Get(std::string_view name) const;

 private:
  struct Content;
  class Reader;
  explicit GgufFile(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  std::shared_ptr<const Content> content_;
};

}  // namespace lockstep::models
