#include "models/gpt/gguf/gguf_file.h"

#include <bit>
#include <charconv>
#include <cstring>
#include <optional>

#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/mapped_file.h"

namespace lockstep::models {

struct GgufFile::Content {
  std::optional<MappedFile> mapping;
  std::string source;
  Json metadata = Json::object();
  std::map<std::string, GgufEntry, std::less<>> tensors;
};

namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian");

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 26;  // of a chat template, say
constexpr uint32_t kMaxDims = 4;                       // ggml's

// Types of values, with the format's numbers.
enum ValueType : uint32_t { kText = 8, kList = 9 };

double Decimal(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double decimal = value;
  std::from_chars(text, end, decimal);  // leaves it alone if it is no number
  return decimal;
}

}  // namespace

class GgufFile::Reader {
 public:
  Reader(std::span<const std::byte> file, Content* to) : file_(file), to_(*to) {}

  void Read() {
    ReadMagic();
    const auto tensors = Take<uint64_t>("the number of tensors");
    const auto pairs = Take<uint64_t>("the number of keys");
    for (uint64_t i = 0; i < pairs; ++i) {
      const std::string key = Text(StrCat("key ", i));
      const std::string what = Quoted(key);
      Json value = Value(Take<uint32_t>(what), what);
      if (!to_.metadata.emplace(key, std::move(value))) Fail(what, " appears twice");
    }
    const Fields f{to_.metadata, to_.source};
    if (f.Integer("split.count", 1) > 1) {
      f.Fail("split.count",
             StrCat("is ", f.Integer("split.count"),
                    ": this is a part of a model; join the parts by: llama-gguf-split --merge ",
                    "FIRST_PART JOINED.gguf"));
    }
    alignment_ = f.Integer("general.alignment", 32);
    if (alignment_ < 1 || alignment_ > 1 << 20 || !std::has_single_bit(uint64_t(alignment_))) {
      f.Fail("general.alignment", StrCat("is ", alignment_, ", not a power of two below 2^20"));
    }
    std::vector<Found> found;
    for (uint64_t i = 0; i < tensors; ++i) found.push_back(ReadTensor(i));
    SetBytes(found);
  }

 private:
  struct Found {
    GgufEntry* entry;
    uint64_t offset;
  };

  template <class... Parts>
  [[noreturn]] void Fail(const Parts&... what) const {
    throw InputError(StrCat(to_.source, ": ", what...));
  }

  std::span<const std::byte> TakeBytes(uint64_t count, const std::string& what) {
    if (count > file_.size() - at_) {
      Fail(what, " needs ", count, " bytes at byte ", at_, ", but the file has ", file_.size(),
           ": it is truncated or damaged");
    }
    at_ += count;
    return file_.subspan(at_ - count, count);
  }

  template <class T>
  T Take(const std::string& what) {
    T value;
    std::memcpy(&value, TakeBytes(sizeof value, what).data(), sizeof value);
    return value;
  }

  std::string Text(const std::string& what) {
    const auto size = Take<uint64_t>(what);
    if (size > kMaxTextBytes) Fail(what, ": a text of ", size, " bytes is too long");
    const auto bytes = TakeBytes(size, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void ReadMagic() {
    const std::string_view all(reinterpret_cast<const char*>(file_.data()), file_.size());
    if (!all.starts_with("GGUF")) {
      Fail("is not a GGUF file, which begins with GGUF; of other models the folder is named");
    }
    at_ = 4;
    const auto version = Take<uint32_t>("the version");
    if (version == 2 || version == 3) return;  // 3 only adds that a file may be big-endian
    const bool big = version == 2U << 24 || version == 3U << 24;
    Fail("GGUF version ", version, big ? " (big-endian)" : "",
         " is not supported, only 2 and 3, little-endian: convert the model again");
  }

  Json Value(uint32_t type, const std::string& what) {
    switch (type) {
      case 0:
        return Take<uint8_t>(what);
      case 1:
        return Take<int8_t>(what);
      case 2:
        return Take<uint16_t>(what);
      case 3:
        return Take<int16_t>(what);
      case 4:
        return Take<uint32_t>(what);
      case 5:
        return Take<int32_t>(what);
      case 6:
        return Decimal(Take<float>(what));
      case 7:
        return Take<uint8_t>(what) != 0;
      case kText:
        return Text(what);
      case kList:
        return List(what);
      case 10:
        return Take<uint64_t>(what);
      case 11:
        return Take<int64_t>(what);
      case 12:
        return Take<double>(what);
      default:
        Fail(what, " has a value of type ", type, ", which GGUF does not have");
    }
  }

  Json List(const std::string& what) {
    const auto type = Take<uint32_t>(what);
    const auto count = Take<uint64_t>(what);
    if (type == kList) Fail(what, " is a list of lists, which is not supported");
    if (count > file_.size() - at_) Fail(what, " is a list of ", count, ", too long for the file");
    Json list = Json::array();
    for (uint64_t i = 0; i < count; ++i) list.push_back(Value(type, what));
    return list;
  }

  // Its bytes are found when all are known.
  Found ReadTensor(uint64_t i) {
    GgufEntry entry{.name = Text(StrCat("the name of tensor ", i))};
    const std::string what = StrCat("tensor ", Quoted(entry.name));
    const auto dims = Take<uint32_t>(what);
    if (dims < 1 || dims > kMaxDims) Fail(what, ": has ", dims, " dimensions, not 1 to ", kMaxDims);
    std::vector<int64_t> sizes(dims);
    int64_t count = 1;
    for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
      *size = Take<int64_t>(what);
      if (*size < 1 || __builtin_mul_overflow(count, *size, &count) || count > int64_t{1} << 56) {
        Fail(what, ": has a size of ", *size, ", which is none, or too large");
      }
    }
    entry.shape = Shape(std::span<const int64_t>(sizes));
    const auto number = Take<uint32_t>(what);
    const auto type = FindGgufType(number);
    if (!type) {
      Fail(what, ": has the type ", GgufTypeName(number),
           "; Lockstep reads F32, F16, BF16, Q8_0, Q4_0 and Q6_K: convert the file, by "
           "llama-quantize --allow-requantize FILE.gguf OUT.gguf Q8_0");
    }
    entry.type = *type;
    if (sizes.back() % GgufBlock(*type) != 0) {
      Fail(what, ": rows of ", sizes.back(), " are not whole blocks of ", GgufTypeName(number));
    }
    const auto offset = Take<uint64_t>(what);
    const auto [it, is_new] = to_.tensors.emplace(entry.name, entry);
    if (!is_new) Fail(what, " appears twice");
    return {&it->second, offset};
  }

  // As ggml, which wants tensors to follow one another.
  void SetBytes(const std::vector<Found>& found) {
    const auto aligned = [&](uint64_t bytes) {
      const auto by = static_cast<uint64_t>(alignment_);
      return (bytes + by - 1) / by * by;
    };
    if (found.empty()) return;
    const uint64_t data = aligned(at_);
    uint64_t expected = 0;
    for (const auto& [entry, offset] : found) {
      const std::string what = StrCat("tensor ", Quoted(entry->name));
      if (offset != expected) {
        Fail(what, ": begins at ", offset, " of the data, but the tensor before it ends at ",
             expected, " (aligned to ", alignment_, ")");
      }
      at_ = std::min<uint64_t>(data + offset, file_.size());
      const auto bytes = static_cast<uint64_t>(GgufBytes(entry->type, entry->shape.numel()));
      entry->bytes = TakeBytes(bytes, what);
      expected = aligned(offset + bytes);
    }
  }

  const std::span<const std::byte> file_;
  Content& to_;
  uint64_t at_ = 0;
  int64_t alignment_ = 32;
};

Tensor GgufEntry::ToTensor() const {
  const DType dtype = GgufDType(type);
  if (GgufBlock(type) == 1) return Tensor::FromBytes(bytes, shape, dtype);
  const Tensor x = Tensor::Empty(shape, dtype);
  Dequantize(type, bytes, std::span(x.data<float>(), static_cast<size_t>(x.numel())));
  return x;
}

GgufEntry GgufEntry::Slice(int64_t i) const {
  std::vector<int64_t> rest;
  for (int d = 1; d < shape.ndim(); ++d) rest.push_back(shape[d]);
  const size_t size = bytes.size() / static_cast<size_t>(shape[0]);
  return {name, type, Shape(std::span<const int64_t>(rest)),
          bytes.subspan(static_cast<size_t>(i) * size, size)};
}

bool GgufFile::Is(const std::string& path) {
  if (!PathExists(path) || IsDirectory(path)) return false;
  if (path.ends_with(".gguf")) return true;
  const MappedFile file(path);  // a cache may call it by its hash
  return file.bytes().size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
}

GgufFile GgufFile::Open(const std::string& path) {
  auto content = std::make_shared<Content>();
  content->source = path;
  content->mapping.emplace(path);
  Reader(content->mapping->bytes(), content.get()).Read();
  return GgufFile(std::move(content));
}

GgufFile GgufFile::Parse(std::span<const std::byte> file, std::string source) {
  auto content = std::make_shared<Content>();
  content->source = std::move(source);
  Reader(file, content.get()).Read();
  return GgufFile(std::move(content));
}

const std::string& GgufFile::source() const { return content_->source; }
Fields GgufFile::metadata() const { return {content_->metadata, content_->source}; }
const std::map<std::string, GgufEntry, std::less<>>& GgufFile::tensors() const {
  return content_->tensors;
}

const GgufEntry* GgufFile::Find(std::string_view name) const {
  const auto it = content_->tensors.find(name);
  return it == content_->tensors.end() ? nullptr : &it->second;
}

const GgufEntry& GgufFile::Get(std::string_view name) const {
  if (const GgufEntry* entry = Find(name)) return *entry;
  throw InputError(
      StrCat(source(), ": has no tensor ", Quoted(name), " among its ", content_->tensors.size()));
}

}  // namespace lockstep::models
