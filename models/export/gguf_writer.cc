#include "models/export/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "core/io/file.h"

namespace lockstep::models {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is little-endian");

constexpr int64_t kAlignment = 32;            // of each tensor; the format's default
constexpr int64_t kPiece = int64_t{1} << 18;  // numbers that are converted at a time

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The bytes before the tensors' data.
class Header {
 public:
  template <class T>
  void Add(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void Add(std::string_view text) {
    Add<uint64_t>(text.size());
    bytes_ += text;
  }
  void Add(const std::string& text) { Add(std::string_view(text)); }

  // The type's number in the format, then the value.
  void AddValue(uint32_t value) { Tagged(4, value); }
  void AddValue(float value) { Tagged(6, value); }
  void AddValue(bool value) { Tagged(7, static_cast<uint8_t>(value)); }
  void AddValue(const std::string& value) { Tagged(8, value); }
  void AddValue(const std::vector<int32_t>& values) { AddArray(5, values); }
  void AddValue(const std::vector<float>& values) { AddArray(6, values); }
  void AddValue(const std::vector<std::string>& values) { AddArray(8, values); }

  std::string Take() && {
    bytes_.resize(static_cast<size_t>(Aligned(std::ssize(bytes_))));
    return std::move(bytes_);
  }

 private:
  template <class T>
  void Tagged(uint32_t type, const T& value) {
    Add(type);
    Add(value);
  }
  template <class T>
  void AddArray(uint32_t type, const std::vector<T>& values) {
    Add<uint32_t>(9);
    Add(type);
    Add<uint64_t>(values.size());
    for (const T& value : values) Add(value);
  }

  std::string bytes_;
};

std::string HeaderOf(const GgufMetadata& metadata, std::span<const GgufTensor> tensors) {
  Header header;
  header.Add<uint32_t>(0x46554747);  // "GGUF"
  header.Add<uint32_t>(3);
  header.Add<uint64_t>(tensors.size());
  header.Add<uint64_t>(metadata.size());
  std::set<std::string_view> names;
  const auto require_new = [&](const std::string& name) {
    LS_CHECK(names.insert(name).second, "GGUF: two entries are called '", name, "'");
  };
  for (const auto& [key, value] : metadata) {
    require_new(key);
    header.Add(key);
    std::visit([&](const auto& v) { header.AddValue(v); }, value);
  }
  int64_t offset = 0;
  for (const GgufTensor& t : tensors) {
    require_new(t.name);
    LS_CHECK(t.type != GgufType::kQ8_0 || t.shape[-1] % kQ8_0Block == 0, "GGUF: rows of '", t.name,
             "', ", t.shape, ", are not whole blocks of ", kQ8_0Block);
    header.Add(t.name);
    header.Add(static_cast<uint32_t>(t.shape.ndim()));
    for (int i = t.shape.ndim() - 1; i >= 0; --i) header.Add<uint64_t>(t.shape[i]);
    header.Add(static_cast<uint32_t>(t.type));
    header.Add<uint64_t>(offset);
    offset += Aligned(GgufBytes(t.type, t.shape.numel()));
  }
  return std::move(header).Take();
}

// From where on a number is infinite in the type.
float LimitOf(GgufType type) {
  return type == GgufType::kF16    ? kF16Limit
         : type == GgufType::kQ8_0 ? 127 * kF16Limit
                                   : std::numeric_limits<float>::infinity();
}

std::span<const std::byte> BytesOf(const Tensor& x) {
  return {static_cast<const std::byte*>(x.raw_data()), static_cast<size_t>(x.bytes())};
}

// The numbers of a piece, as the type stores them.
void WritePiece(const Tensor& piece, const GgufTensor& tensor, FileWriter* out) {
  const Tensor x = piece.To(DType::kF32).Contiguous();
  const std::span<const float> numbers(x.data<float>(), static_cast<size_t>(x.numel()));
  CheckRange(x, LimitOf(tensor.type), tensor.name);
  switch (tensor.type) {
    case GgufType::kF32:
      return out->Write(BytesOf(x));
    case GgufType::kF16:
      return out->Write(BytesOf(x.To(DType::kF16)));
    case GgufType::kBF16:
      return out->Write(BytesOf(x.To(DType::kBF16)));
    case GgufType::kQ8_0: {
      std::vector<std::byte> blocks(static_cast<size_t>(GgufBytes(tensor.type, x.numel())));
      QuantizeQ8_0(numbers, blocks);
      return out->Write(blocks);
    }
    case GgufType::kQ4_0:
    case GgufType::kQ6_K:
      throw ArgumentError("GGUF: Q4_0 and Q6_K are read, not written");
  }
}

void WriteTensor(const GgufTensor& tensor, FileWriter* out) {
  int64_t written = 0;
  for (const auto& produce : tensor.parts) {
    const Tensor whole = produce().Detach().To(kCpu).Contiguous();
    const int64_t n = whole.numel();
    LS_CHECK(tensor.type != GgufType::kQ8_0 || n % kQ8_0Block == 0, "GGUF: a part of '",
             tensor.name, "', ", whole.shape(), ", is not in whole blocks");
    const Tensor flat = whole.View({n});
    for (int64_t begin = 0; begin < n; begin += kPiece) {
      WritePiece(flat.Slice(0, begin, std::min(begin + kPiece, n)), tensor, out);
    }
    written += n;
  }
  LS_CHECK(written == tensor.shape.numel(), "GGUF: '", tensor.name, "' has ", written,
           " numbers, but its shape is ", tensor.shape);
  const int64_t bytes = GgufBytes(tensor.type, written);
  out->Write(std::string(static_cast<size_t>(Aligned(bytes) - bytes), '\0'));
}

}  // namespace

void CheckRange(const Tensor& x, float limit, const std::string& name) {
  for (const float v : std::span(x.data<float>(), static_cast<size_t>(x.numel()))) {
    if (!std::isfinite(v)) {
      throw InputError(StrCat("the weight that is written as '", name, "' has a ", v,
                              " in it: the run has diverged; export an earlier checkpoint"));
    }
    if (std::abs(v) >= limit) {
      throw InputError(StrCat("the weight that is written as '", name, "' has a ", v,
                              ", which this type cannot hold: use --dtype=bf16 or --dtype=f32"));
    }
  }
}

void QuantizeQ8_0(std::span<const float> x, std::span<std::byte> out) {
  LS_CHECK(
      std::ssize(out) == GgufBytes(GgufType::kQ8_0, std::ssize(x)) && x.size() % kQ8_0Block == 0,
      "Q8_0: ", x.size(), " numbers do not fill ", out.size(), " bytes");
  std::byte* to = out.data();
  for (size_t begin = 0; begin < x.size(); begin += kQ8_0Block) {
    const std::span<const float> block = x.subspan(begin, kQ8_0Block);
    float most = 0;
    for (const float v : block) most = std::max(most, std::abs(v));
    const float scale = most / 127;
    // 0 for numbers whose scale is 0 in f16 anyhow.
    const float inverse = std::isfinite(1 / scale) ? 1 / scale : 0;
    const F16 rounded(scale);
    std::memcpy(to, &rounded, sizeof rounded);
    for (int64_t i = 0; i < kQ8_0Block; ++i) {
      to[2 + i] = static_cast<std::byte>(
          static_cast<int8_t>(std::round(block[static_cast<size_t>(i)] * inverse)));
    }
    to += kQ8_0BlockBytes;
  }
}

void WriteGguf(const std::string& path, const GgufMetadata& metadata,
               std::span<const GgufTensor> tensors) {
  const std::string header = HeaderOf(metadata, tensors);
  int64_t bytes = std::ssize(header);
  for (const GgufTensor& t : tensors) bytes += Aligned(GgufBytes(t.type, t.shape.numel()));
  MakeDirectories(ParentPath(path));
  ReplaceFile(path, [&](FileWriter& out) {
    out.ExpectBytes(bytes);
    out.Write(header);
    for (const GgufTensor& t : tensors) WriteTensor(t, &out);
  });
}

}  // namespace lockstep::models
