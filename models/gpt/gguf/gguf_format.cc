#include "models/gpt/gguf/gguf_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"

namespace lockstep::models {
namespace {

// https://github.com/ggml-org/ggml/blob/master/include/ggml.h, enum ggml_type
constexpr std::array<std::string_view, 31> kTypeNames = {
    "F32",     "F16",    "Q4_0",    "Q4_1",  "",       "",      "Q5_0",  "Q5_1",
    "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16"};

struct Layout {
  GgufType type;
  int64_t block, bytes;
  DType dtype = DType::kF32;
};
constexpr Layout kLayouts[] = {{GgufType::kF32, 1, 4},
                               {GgufType::kF16, 1, 2, DType::kF16},
                               {GgufType::kBF16, 1, 2, DType::kBF16},
                               {GgufType::kQ4_0, 32, 18},
                               {GgufType::kQ8_0, kQ8_0Block, kQ8_0BlockBytes},
                               {GgufType::kQ6_K, 256, 210}};

const Layout& LayoutOf(GgufType type) {
  for (const Layout& layout : kLayouts) {
    if (layout.type == type) return layout;
  }
  throw ArgumentError("GGUF: no such type");
}

float ScaleAt(const std::byte* at) {
  F16 scale;
  std::memcpy(&scale, at, sizeof scale);
  return static_cast<float>(scale);
}

int Byte(std::byte b) { return std::to_integer<int>(b); }
int Signed(std::byte b) { return static_cast<int8_t>(b); }

void ReadQ8_0(const std::byte* block, float* out) {
  const float scale = ScaleAt(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(Signed(block[2 + i]));
}

void ReadQ4_0(const std::byte* block, float* out) {
  const float scale = ScaleAt(block);
  for (int i = 0; i < 16; ++i) {
    const int both = Byte(block[2 + i]);
    out[i] = static_cast<float>((both & 15) - 8) * scale;
    out[i + 16] = static_cast<float>((both >> 4) - 8) * scale;
  }
}

// Number i of a half of 128 has its low bits in nibble i / 64 of byte i % 64, its high bits in pair
// i / 32 of byte i % 32, and the scale i / 16.
void ReadQ6_K(const std::byte* block, float* out) {
  const std::byte *low = block, *high = block + 128, *scales = block + 192;
  const float scale = ScaleAt(block + 208);
  for (int half = 0; half < 2; ++half, low += 64, high += 32, scales += 8, out += 128) {
    for (int i = 0; i < 128; ++i) {
      const int nibble = Byte(low[i % 64]) >> 4 * (i / 64) & 15;
      const int pair = Byte(high[i % 32]) >> 2 * (i / 32) & 3;
      out[i] = scale * static_cast<float>(Signed(scales[i / 16])) *
               static_cast<float>((nibble | pair << 4) - 32);
    }
  }
}

}  // namespace

std::optional<GgufType> FindGgufType(uint32_t number) {
  const auto type = static_cast<GgufType>(number);
  const auto* found = std::ranges::find(kLayouts, type, &Layout::type);
  return found == std::end(kLayouts) ? std::nullopt : std::optional(type);
}

std::string GgufTypeName(uint32_t number) {
  const bool known = number < kTypeNames.size() && !kTypeNames[number].empty();
  return known ? std::string(kTypeNames[number]) : StrCat("number ", number);
}

int64_t GgufBlock(GgufType type) { return LayoutOf(type).block; }

int64_t GgufBytes(GgufType type, int64_t elements) {
  const Layout& layout = LayoutOf(type);
  return elements / layout.block * layout.bytes;
}

DType GgufDType(GgufType type) { return LayoutOf(type).dtype; }

void Dequantize(GgufType type, std::span<const std::byte> blocks, std::span<float> out) {
  const Layout& layout = LayoutOf(type);
  auto* const read = type == GgufType::kQ8_0   ? ReadQ8_0
                     : type == GgufType::kQ4_0 ? ReadQ4_0
                     : type == GgufType::kQ6_K ? ReadQ6_K
                                               : nullptr;
  const int64_t count = std::ssize(out) / layout.block;
  LS_CHECK(read != nullptr && count * layout.block == std::ssize(out) &&
               count * layout.bytes == std::ssize(blocks),
           "GGUF: ", blocks.size(), " bytes of ", GgufTypeName(static_cast<uint32_t>(type)),
           " are not ", out.size(), " quantised numbers");
  for (int64_t i = 0; i < count; ++i) {
    read(blocks.data() + i * layout.bytes, out.data() + i * layout.block);
  }
}

}  // namespace lockstep::models
