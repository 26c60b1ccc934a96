// Reading safetensors files, the format of Hugging Face models:
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"

namespace lockstep {

// One tensor of a file. `bytes` lies inside the file's mapping, row-major, little-endian, and is
// valid as long as a SafetensorsFile handle of the file lives. In files of old writers it may be
// unaligned: copy the bytes, don't cast the pointer.
struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;  // as in the file: "F32", "BF16", "I8"
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const std::string> source;  // the file, for messages

  // InputError if Lockstep has no such element type (I8, I16, U32, U64, C64, and types below 8
  // bits).
  DType dtype() const;
  // A copy on the CPU. InputError as for dtype(), for more than Shape::kMaxDims dimensions, and for
  // a BOOL that is neither 0 nor 1.
  Tensor ToTensor() const;
};

// A file, checked as a whole before the first entry is handed out: header length, JSON without
// duplicate keys, only the fields of the format, dtypes of known size, shapes whose byte count does
// not overflow and equals the offsets' range, and tensors that fill the data without holes or
// overlaps up to the last byte. Anything else is an InputError naming file, tensor and field.
// Copies share the mapping.
class SafetensorsFile {
 public:
  // Maps the file; IoError if it can't be read.
  static SafetensorsFile Open(const std::string& path);
  // Parses bytes that the caller keeps alive. `source` names them in messages.
  static SafetensorsFile Parse(std::span<const std::byte> file, std::string source);

  const std::string& source() const;
  // In the order of their data in the file.
  const std::vector<SafetensorsEntry>& entries() const;
  const std::map<std::string, std::string>& metadata() const;
  // nullptr if there is none.
  const SafetensorsEntry* Find(std::string_view name) const;
  // InputError if there is none.
  const SafetensorsEntry& Get(std::string_view name) const;

 private:
  struct Content;
  static std::shared_ptr<Content> Read(std::span<const std::byte> file, std::string source);
  explicit SafetensorsFile(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  std::shared_ptr<const Content> content_;
};

// The tensors of a file, or of a folder with model.safetensors or, for models in several files,
// model.safetensors.index.json. In the latter case its weight_map decides where a tensor is read
// from; tensors that it does not list stay hidden.
class SafetensorsSet {
 public:
  // InputError for a damaged index, one that leads out of the folder, or a tensor that is not in
  // the shard that it names; IoError for missing files.
  static SafetensorsSet Open(const std::string& path);

  const std::string& source() const { return source_; }
  std::vector<std::string> names() const;
  // The metadata of the only file, or of the first shard by name.
  const std::map<std::string, std::string>& metadata() const { return files_.front().metadata(); }
  const SafetensorsEntry* Find(std::string_view name) const;
  const SafetensorsEntry& Get(std::string_view name) const;

 private:
  static SafetensorsSet OpenIndex(const std::string& folder, const std::string& index_path);

  std::string source_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const SafetensorsEntry*, std::less<>> entries_;
};

}  // namespace lockstep
