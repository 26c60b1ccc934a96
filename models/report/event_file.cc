#include "models/report/event_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "data/utf8.h"

namespace lockstep::models {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 255];
  return ~crc;
}

uint32_t MaskedCrc32c(std::string_view bytes) { return std::rotr(Crc32c(bytes), 15) + 0xa282ead8u; }

namespace {

static_assert(std::endian::native == std::endian::little);

// Field numbers of the messages.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr int kValue = 1;
}
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
}
namespace metadata {
constexpr int kPluginData = 1, kDataClass = 4, kDataClassTensor = 2;
}
namespace plugin_data {
constexpr int kPluginName = 1;
}
namespace tensor {
constexpr int kDType = 1, kShape = 2, kStringValue = 8, kDTypeString = 7;
}
namespace shape {
constexpr int kDim = 2, kDimSize = 1;
}

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// ---- Writing protobuf's wire format. ----

template <class T>
std::string Raw(T x) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &x, sizeof(T));
  return bytes;
}

std::string Varint(uint64_t x) {
  std::string s;
  for (; x >= 0x80; x >>= 7) s += static_cast<char>(x | 0x80);
  return s + static_cast<char>(x);
}

std::string Key(int field, WireType type) {
  return Varint(static_cast<uint64_t>(field << 3 | type));
}
std::string Int(int field, int64_t x) {
  return Key(field, kVarint) + Varint(static_cast<uint64_t>(x));
}
std::string Double(int field, double x) { return Key(field, kFixed64) + Raw(x); }
std::string Float(int field, float x) { return Key(field, kFixed32) + Raw(x); }
std::string Bytes(int field, std::string_view bytes) {
  return Key(field, kBytes) + Varint(bytes.size()) + std::string(bytes);
}

std::string ToUtf8(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto n = static_cast<size_t>(data::DecodeUtf8(text, i).length);
    out += n > 0 ? text.substr(i, n) : std::string_view("\xEF\xBF\xBD");
    i += std::max<size_t>(n, 1);
  }
  return out;
}

std::string ValueMessage(const SummaryValue& v) {
  std::string s = Bytes(value::kTag, ToUtf8(v.tag));
  if (!v.is_text) return s + Float(value::kSimpleValue, v.scalar);
  const std::string one_element = Bytes(shape::kDim, Int(shape::kDimSize, 1));
  s += Bytes(value::kTensor, Int(tensor::kDType, tensor::kDTypeString) +
                                 Bytes(tensor::kShape, one_element) +
                                 Bytes(tensor::kStringValue, ToUtf8(v.text)));
  return s + Bytes(value::kMetadata,
                   Bytes(metadata::kPluginData, Bytes(plugin_data::kPluginName, "text")) +
                       Int(metadata::kDataClass, metadata::kDataClassTensor));
}

// ---- Reading it. ----

struct Field {
  int number = 0;
  uint64_t bits = 0;       // of a number
  std::string_view bytes;  // of a string or message
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // None at the end, or if the message is malformed: then ok() is false.
  std::optional<Field> Next() {
    if (text_.empty() || !ok_) return {};
    const uint64_t key = ReadVarint();
    Field f{static_cast<int>(key >> 3), 0, {}};
    switch (key & 7) {
      case kVarint:
        f.bits = ReadVarint();
        break;
      case kFixed64:
        f.bits = ReadFixed<uint64_t>();
        break;
      case kFixed32:
        f.bits = ReadFixed<uint32_t>();
        break;
      case kBytes:
        f.bytes = Take(ReadVarint());
        break;
      default:
        ok_ = false;
    }
    if (!ok_) return {};
    return f;
  }
  bool ok() const { return ok_; }

 private:
  std::string_view Take(uint64_t n) {
    if (n > text_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = text_.substr(0, n);
    text_.remove_prefix(n);
    return taken;
  }
  template <class T>
  T ReadFixed() {
    T x{};
    const std::string_view bytes = Take(sizeof(T));
    if (ok_) std::memcpy(&x, bytes.data(), sizeof(T));
    return x;
  }
  uint64_t ReadVarint() {
    uint64_t x = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = ReadFixed<uint8_t>();
      x |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return x;
    }
    ok_ = false;
    return 0;
  }

  std::string_view text_;
  bool ok_ = true;
};

SummaryValue ParseValue(std::string_view message) {
  SummaryValue v;
  Reader fields(message);
  while (const auto f = fields.Next()) {
    if (f->number == value::kTag) v.tag = f->bytes;
    if (f->number == value::kSimpleValue)
      v.scalar = std::bit_cast<float>(static_cast<uint32_t>(f->bits));
    if (f->number != value::kTensor) continue;
    Reader parts(f->bytes);
    while (const auto part = parts.Next()) {
      if (part->number != tensor::kStringValue) continue;
      v.is_text = true;
      v.text = part->bytes;
    }
  }
  return v;
}

Event ParseEvent(std::string_view message) {
  Event e;
  Reader fields(message);
  while (const auto f = fields.Next()) {
    if (f->number == event::kWallTime) e.unix_time = std::bit_cast<double>(f->bits);
    if (f->number == event::kStep) e.step = static_cast<int64_t>(f->bits);
    if (f->number == event::kFileVersion) e.file_version = f->bytes;
    if (f->number != event::kSummary) continue;
    Reader values(f->bytes);
    while (const auto v = values.Next()) {
      if (v->number == summary::kValue) e.values.push_back(ParseValue(v->bytes));
    }
  }
  return e;
}

template <class T>
T Load(std::string_view bytes, size_t at) {
  T x;
  std::memcpy(&x, bytes.data() + at, sizeof(T));
  return x;
}

}  // namespace

std::string VersionEvent(double unix_time) {
  return Double(event::kWallTime, unix_time) + Bytes(event::kFileVersion, "brain.Event:2");
}

std::string SummaryEvent(double unix_time, int64_t step, const std::vector<SummaryValue>& values) {
  std::string message;
  for (const SummaryValue& v : values) message += Bytes(summary::kValue, ValueMessage(v));
  return Double(event::kWallTime, unix_time) + Int(event::kStep, step) +
         Bytes(event::kSummary, message);
}

std::string Record(std::string_view data) {
  const std::string length = Raw<uint64_t>(data.size());
  return length + Raw(MaskedCrc32c(length)) + std::string(data) + Raw(MaskedCrc32c(data));
}

std::vector<Event> ParseEventFile(std::string_view file, int64_t* good_bytes) {
  constexpr size_t kHead = 12, kTail = 4;
  std::vector<Event> events;
  size_t at = 0;
  while (file.size() - at >= kHead + kTail) {
    const auto length = Load<uint64_t>(file, at);
    if (Load<uint32_t>(file, at + 8) != MaskedCrc32c(file.substr(at, 8))) break;
    if (length > file.size() - at - kHead - kTail) break;
    const std::string_view data = file.substr(at + kHead, length);
    if (Load<uint32_t>(file, at + kHead + length) != MaskedCrc32c(data)) break;
    at += kHead + length + kTail;
    events.push_back(ParseEvent(data));
    events.back().end = static_cast<int64_t>(at);
  }
  *good_bytes = static_cast<int64_t>(at);
  return events;
}

}  // namespace lockstep::models
