#include "core/io/safetensors.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/mapped_file.h"
#include "core/io/safetensors_header.h"

namespace lockstep {

struct SafetensorsFile::Content {
  std::optional<MappedFile> mapping;
  std::shared_ptr<const std::string> source;
  std::vector<SafetensorsEntry> entries;
  std::vector<size_t> by_name;  // positions in entries
  std::map<std::string, std::string> metadata;
};

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct FileDType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};

// https://github.com/huggingface/safetensors/blob/main/safetensors/src/tensor.rs, enum Dtype
constexpr FileDType kFileDTypes[] = {
    {"F64", 64, DType::kF64},
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"F8_E4M3", 8, DType::kF8E4M3},
    {"F8_E5M2", 8, DType::kF8E5M2},
    {"I64", 64, DType::kI64},
    {"I32", 32, DType::kI32},
    {"U16", 16, DType::kU16},
    {"U8", 8, DType::kU8},
    {"BOOL", 8, DType::kBool},
    {"I8", 8, {}},
    {"I16", 16, {}},
    {"U32", 32, {}},
    {"U64", 64, {}},
    {"C64", 64, {}},
    {"F8_E8M0", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
};

const FileDType* FindDType(std::string_view name) {
  for (const FileDType& dtype : kFileDTypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += StrCat(i > 0 ? ", " : "", shape[i]);
  return text + "]";
}

// What a file that is not a safetensors file may be.
std::string_view Guess(std::string_view file) {
  if (file.starts_with("version https://git-lfs")) {
    return " This is a Git LFS pointer, not the file itself: run git lfs pull.";
  }
  if (file.starts_with("PK\x03\x04") || file.starts_with("\x80\x02")) {
    return " It looks like a PyTorch file (.bin, .pt): convert it to safetensors first.";
  }
  if (file.starts_with("GGUF")) return " It looks like a GGUF file.";
  if (file.starts_with("<")) return " It looks like a web page: was the download complete?";
  return "";
}

// The JSON text between the length and the data. Sets `data`.
std::string_view HeaderText(std::span<const std::byte> file, const std::string& source,
                            std::span<const std::byte>* data) {
  const std::string_view all(reinterpret_cast<const char*>(file.data()), file.size());
  const auto fail = [&](const auto&... what) {
    throw InputError(StrCat(source, ": not a valid safetensors file: ", what..., Guess(all)));
  };
  if (file.size() < 8)
    fail("it has ", file.size(), " bytes, but the length of the header already takes 8.");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(file[i]);
  if (length > kMaxHeaderBytes) {
    fail("header length: ", length, " exceeds the maximum of ", kMaxHeaderBytes, " bytes.");
  }
  if (length > file.size() - 8) {
    fail("header length: ", length, " bytes, but only ", file.size() - 8,
         " follow; the file is truncated.");
  }
  if (length < 2) fail("header length: ", length, ", but the shortest header, {}, has 2 bytes.");
  *data = file.subspan(8 + length);
  std::string_view text = all.substr(8, length);
  if (text.front() != '{') fail("header: begins with ", Quoted(text.substr(0, 1)), ", not {.");
  text = text.substr(0, text.find_last_not_of(' ') + 1);  // not npos: there is a {
  if (text.back() != '}') {
    fail("header: ends with ", Quoted(text.substr(text.size() - 1)), ", not with } and spaces.");
  }
  return text;
}

// A tensor's size in bytes; InputError naming it if that overflows or is not a whole number.
int64_t ByteCount(const SafetensorsRawEntry& raw, const FileDType& dtype,
                  const std::string& source) {
  const auto fail = [&](const auto&... what) {
    throw InputError(StrCat(source, ": tensor ", Quoted(raw.name), ", shape ", ShapeText(raw.shape),
                            ": ", what...));
  };
  int64_t product = 1;  // of the nonzero sizes: a 0 must not hide an overflow
  bool empty = false;
  for (const int64_t size : raw.shape) {
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      fail("the number of elements overflows");
    }
  }
  int64_t bits = 0;
  if (__builtin_mul_overflow(product, int64_t{dtype.bits}, &bits)) {
    fail("the number of bytes overflows");
  }
  if (empty) return 0;
  if (bits % 8 != 0) fail("elements of ", dtype.bits, " bits do not fill whole bytes");
  return bits / 8;
}

void CheckEntry(const SafetensorsRawEntry& raw, uint64_t data_bytes, const std::string& source) {
  const std::string where = StrCat(source, ": tensor ", Quoted(raw.name));
  const FileDType* dtype = FindDType(raw.dtype);
  if (dtype == nullptr) {
    throw InputError(StrCat(where, ", dtype: ", Quoted(raw.dtype), " is not known"));
  }
  const std::string offsets = StrCat(", data_offsets: [", raw.begin, ", ", raw.end, "]");
  if (raw.begin > raw.end) throw InputError(StrCat(where, offsets, " end before they begin"));
  if (raw.end > data_bytes) {
    throw InputError(StrCat(where, offsets, " reach beyond the ", data_bytes,
                            " bytes of data; the file is truncated or damaged"));
  }
  const int64_t bytes = ByteCount(raw, *dtype, source);
  if (raw.end - raw.begin != static_cast<uint64_t>(bytes)) {
    throw InputError(StrCat(where, offsets, " span ", raw.end - raw.begin, " bytes, but ",
                            raw.dtype, " of shape ", ShapeText(raw.shape), " takes ", bytes));
  }
}

// Tensors, sorted by offsets, must follow each other from the first byte of the data to the last.
void CheckCoverage(const std::vector<SafetensorsRawEntry>& sorted, uint64_t data_bytes,
                   const std::string& source) {
  uint64_t reached = 0;
  std::string_view previous;
  for (const SafetensorsRawEntry& raw : sorted) {
    if (raw.begin < reached) {
      throw InputError(StrCat(source, ": tensor ", Quoted(raw.name), ", data_offsets: begins at ",
                              raw.begin, ", but tensor ", Quoted(previous), " reaches to ", reached,
                              ": they overlap"));
    }
    if (raw.begin > reached) {
      throw InputError(StrCat(source, ": tensor ", Quoted(raw.name), ", data_offsets: begins at ",
                              raw.begin, ", but bytes from ", reached,
                              " on belong to no tensor: holes are not allowed"));
    }
    reached = raw.end;
    previous = raw.name;
  }
  if (reached != data_bytes) {
    throw InputError(StrCat(source, ": data_offsets: the tensors end at byte ", reached,
                            " of the data, but it has ", data_bytes,
                            " bytes: the file is damaged or something was appended to it"));
  }
}

std::vector<size_t> SortedByName(const std::vector<SafetensorsEntry>& entries,
                                 const std::string& source) {
  std::vector<size_t> by_name(entries.size());
  for (size_t i = 0; i < by_name.size(); ++i) by_name[i] = i;
  std::sort(by_name.begin(), by_name.end(),
            [&](size_t a, size_t b) { return entries[a].name < entries[b].name; });
  const auto twin = std::adjacent_find(by_name.begin(), by_name.end(), [&](size_t a, size_t b) {
    return entries[a].name == entries[b].name;
  });
  if (twin != by_name.end()) {
    throw InputError(
        StrCat(source, ": header: tensor ", Quoted(entries[*twin].name), " appears twice"));
  }
  return by_name;
}

}  // namespace

DType SafetensorsEntry::dtype() const {
  const FileDType* found = FindDType(dtype_name);
  if (found == nullptr || !found->dtype) {
    throw InputError(StrCat(*source, ": tensor ", Quoted(name), ", dtype: ", Quoted(dtype_name),
                            " is not supported; convert the tensor to one of F64, F32, F16, BF16, "
                            "F8_E4M3, F8_E5M2, I64, I32, U16, U8, BOOL"));
  }
  return *found->dtype;
}

Tensor SafetensorsEntry::ToTensor() const {
  const DType type = dtype();
  if (shape.size() > Shape::kMaxDims) {
    throw InputError(StrCat(*source, ": tensor ", Quoted(name), ", shape: ", shape.size(),
                            " dimensions; at most ", Shape::kMaxDims, " are supported"));
  }
  if (type == DType::kBool) {
    const auto bad = std::find_if(bytes.begin(), bytes.end(),
                                  [](std::byte b) { return static_cast<uint8_t>(b) > 1; });
    if (bad != bytes.end()) {
      throw InputError(StrCat(*source, ": tensor ", Quoted(name), ": element ", bad - bytes.begin(),
                              " is ", static_cast<int>(*bad), ", but a BOOL must be 0 or 1"));
    }
  }
  return Tensor::FromBytes(bytes, Shape(std::span<const int64_t>(shape)), type);
}

std::shared_ptr<SafetensorsFile::Content> SafetensorsFile::Read(std::span<const std::byte> file,
                                                                std::string source) {
  auto content = std::make_shared<Content>();
  content->source = std::make_shared<const std::string>(std::move(source));
  std::span<const std::byte> data;
  const std::string_view text = HeaderText(file, *content->source, &data);
  SafetensorsRawHeader header = ParseSafetensorsHeader(text, *content->source);
  content->metadata = std::move(header.metadata);
  std::vector<SafetensorsRawEntry>& raws = header.entries;
  for (const SafetensorsRawEntry& raw : raws) CheckEntry(raw, data.size(), *content->source);
  std::sort(raws.begin(), raws.end(),
            [](const SafetensorsRawEntry& a, const SafetensorsRawEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  content->entries.reserve(raws.size());
  for (SafetensorsRawEntry& raw : raws) {
    content->entries.push_back({raw.name, std::move(raw.dtype), std::move(raw.shape),
                                data.subspan(raw.begin, raw.end - raw.begin), content->source});
  }
  content->by_name = SortedByName(content->entries, *content->source);
  CheckCoverage(raws, data.size(), *content->source);
  return content;
}

SafetensorsFile SafetensorsFile::Open(const std::string& path) {
  MappedFile mapping(path);
  auto content = Read(mapping.bytes(), path);
  content->mapping = std::move(mapping);  // the bytes do not move
  return SafetensorsFile(std::move(content));
}

SafetensorsFile SafetensorsFile::Parse(std::span<const std::byte> file, std::string source) {
  return SafetensorsFile(Read(file, std::move(source)));
}

const std::string& SafetensorsFile::source() const { return *content_->source; }
const std::vector<SafetensorsEntry>& SafetensorsFile::entries() const { return content_->entries; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return content_->metadata;
}

const SafetensorsEntry* SafetensorsFile::Find(std::string_view name) const {
  const std::vector<SafetensorsEntry>& all = content_->entries;
  const auto at = std::lower_bound(content_->by_name.begin(), content_->by_name.end(), name,
                                   [&](size_t i, std::string_view n) { return all[i].name < n; });
  if (at == content_->by_name.end() || all[*at].name != name) return nullptr;
  return &all[*at];
}

const SafetensorsEntry& SafetensorsFile::Get(std::string_view name) const {
  if (const SafetensorsEntry* entry = Find(name)) return *entry;
  throw InputError(
      StrCat(source(), ": has no tensor ", Quoted(name), " among its ", entries().size()));
}

}  // namespace lockstep
