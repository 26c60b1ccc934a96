#include "dist/groups/float_packing.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "core/error.h"

namespace lockstep::dist {
namespace {

constexpr int kBlock = 64;       // elements
constexpr int kBits = 3;         // of a distance
constexpr uint8_t kFurther = 7;  // the distance of those whose exponent follows

using Bytes = std::array<uint8_t, kBlock>;

// A block is its largest exponent (1 byte), bit 0 of all distances, then bits 1 and 2 (8 bytes
// each), signs with the upper 7 bits of mantissas (64), the lower 16 bits of f32's mantissas (128),
// and the exponents that follow. Where the largest exponent is 0, nothing of this comes, but:
enum Whole : uint8_t { kZeros, kAsItIs };

constexpr int64_t kHead = 1 + kBits * 8 + kBlock;
// Beyond, the block is written as it is.
constexpr int kMostFurther = kBlock / 2;

template <class Word>
struct Format {
  static constexpr int kMantissa = sizeof(Word) == 4 ? 23 : 7;
  static constexpr int kLowBytes = sizeof(Word) - 2;  // of an element, beside sign and exponent
  // Whatever the block's bytes are: reading ends here.
  static constexpr int64_t kMost = kHead + kBlock * kLowBytes + kBlock;
  static_assert(kMost >= int64_t{2} + kBlock * int64_t{sizeof(Word)});

  static uint8_t Exponent(Word w) { return static_cast<uint8_t>(w >> kMantissa); }
  static uint8_t High(Word w) {
    return static_cast<uint8_t>((w >> (kMantissa + 1) & 0x80) | (w >> (kMantissa - 7) & 0x7f));
  }
  static Word Of(uint8_t exponent, uint8_t high, uint16_t low) {
    return static_cast<Word>(
        Word{low} | Word{static_cast<uint8_t>(high & 0x7f)} << (kMantissa - 7) |
        Word{exponent} << kMantissa | static_cast<Word>(Word{high} >> 7) << (kMantissa + 8));
  }
};

template <class T>
std::byte* Write(const T& value, std::byte* out) {
  std::memcpy(out, &value, sizeof(T));
  return out + sizeof(T);
}

template <class T>
T Read(const std::byte** in) {
  T value;
  std::memcpy(&value, *in, sizeof(T));
  *in += sizeof(T);
  return value;
}

// Bit `bit` of each byte; that of byte i becomes bit i.
uint64_t GatherBits(const Bytes& bytes, int bit) {
  uint64_t gathered = 0;
  for (int i = 0; i < kBlock; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, &bytes[i], 8);
    // Bit 8 k times 2^(56 - 7 k) is bit 56 + k; no two meet.
    const uint64_t byte = ((eight >> bit & 0x0101010101010101) * 0x0102040810204080) >> 56;
    gathered |= byte << i;
  }
  return gathered;
}

// The other way round, into bytes that have no such bit yet.
void SpreadBits(uint64_t bits, int bit, Bytes* bytes) {
  for (int i = 0; i < kBlock; i += 8) {
    uint64_t eight;
    std::memcpy(&eight, &(*bytes)[i], 8);
    const uint64_t one_of_each = (bits >> i & 0xff) * 0x0101010101010101 & 0x8040201008040201;
    eight |= ((one_of_each + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101) << bit;
    std::memcpy(&(*bytes)[i], &eight, 8);
  }
}

template <class Word>
std::byte* PackWhole(Whole whole, const std::array<Word, kBlock>& words, std::byte* out) {
  out = Write(uint8_t{0}, out);
  out = Write(whole, out);
  return whole == kZeros ? out : Write(words, out);
}

template <class Word>
std::byte* PackBlock(const std::array<Word, kBlock>& words, std::byte* out) {
  using F = Format<Word>;
  Bytes exponents, distances, high;
  uint8_t largest = 0;
  for (int i = 0; i < kBlock; ++i) exponents[i] = F::Exponent(words[i]);
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, exponents[i]);
  if (largest == 0) {
    Word any = 0;
    for (const Word w : words) any |= w;
    return PackWhole(any == 0 ? kZeros : kAsItIs, words, out);
  }
  for (int i = 0; i < kBlock; ++i) {
    distances[i] = std::min<uint8_t>(static_cast<uint8_t>(largest - exponents[i]), kFurther);
  }
  uint64_t further = ~uint64_t{0};
  std::array<uint64_t, kBits> bits;
  for (int b = 0; b < kBits; ++b) further &= bits[b] = GatherBits(distances, b);
  if (std::popcount(further) > kMostFurther) return PackWhole(kAsItIs, words, out);
  for (int i = 0; i < kBlock; ++i) high[i] = F::High(words[i]);
  out = Write(largest, out);
  out = Write(bits, out);
  out = Write(high, out);
  if constexpr (F::kLowBytes > 0) {
    std::array<uint16_t, kBlock> low;
    for (int i = 0; i < kBlock; ++i) low[i] = static_cast<uint16_t>(words[i]);
    out = Write(low, out);
  }
  for (; further != 0; further &= further - 1) {
    out = Write(exponents[std::countr_zero(further)], out);
  }
  return out;
}

template <class Word>
std::array<Word, kBlock> UnpackBlock(const std::byte** in) {
  using F = Format<Word>;
  const auto largest = Read<uint8_t>(in);
  if (largest == 0) {
    return Read<uint8_t>(in) == kZeros ? std::array<Word, kBlock>{}
                                       : Read<std::array<Word, kBlock>>(in);
  }
  const auto bits = Read<std::array<uint64_t, kBits>>(in);
  Bytes exponents = {};
  uint64_t further = ~uint64_t{0};
  for (int b = 0; b < kBits; ++b) {
    further &= bits[b];
    SpreadBits(bits[b], b, &exponents);
  }
  for (uint8_t& e : exponents) e = static_cast<uint8_t>(largest - e);
  const auto high = Read<Bytes>(in);
  std::array<uint16_t, kBlock> low = {};
  if constexpr (F::kLowBytes > 0) low = Read<std::array<uint16_t, kBlock>>(in);
  for (; further != 0; further &= further - 1) {
    exponents[std::countr_zero(further)] = Read<uint8_t>(in);
  }
  std::array<Word, kBlock> words;
  for (int i = 0; i < kBlock; ++i) words[i] = F::Of(exponents[i], high[i], low[i]);
  return words;
}

template <class Word>
int64_t Pack(const std::byte* elements, int64_t n, std::byte* packed) {
  std::byte* out = packed;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    out = PackBlock(Read<std::array<Word, kBlock>>(&elements), out);
  }
  const auto rest = static_cast<size_t>(n - i) * sizeof(Word);
  if (rest > 0) std::memcpy(out, elements, rest);
  return out + rest - packed;
}

template <class Word>
void Unpack(const std::byte* packed, int64_t n, std::byte* elements) {
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) elements = Write(UnpackBlock<Word>(&packed), elements);
  const auto rest = static_cast<size_t>(n - i) * sizeof(Word);
  if (rest > 0) std::memcpy(elements, packed, rest);
}

// f(Word{}), of the dtype's size.
template <class F>
auto WithWord(DType dtype, const F& f) {
  LS_CHECK(CanPack(dtype), "pack: ", dtype, " is not packed, only f32 and bf16 are");
  return dtype == DType::kF32 ? f(uint32_t{}) : f(uint16_t{});
}

}  // namespace

bool CanPack(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

int64_t PackedBound(DType dtype, int64_t n) {
  return WithWord(dtype, [&](auto word) {
    return n / kBlock * Format<decltype(word)>::kMost + n % kBlock * int64_t{sizeof(word)};
  });
}

int64_t PackFloats(DType dtype, const void* elements, int64_t n, std::byte* packed) {
  return WithWord(dtype, [&](auto word) {
    return Pack<decltype(word)>(static_cast<const std::byte*>(elements), n, packed);
  });
}

void UnpackFloats(DType dtype, const std::byte* packed, int64_t n, void* elements) {
  WithWord(dtype, [&](auto word) {
    Unpack<decltype(word)>(packed, n, static_cast<std::byte*>(elements));
  });
}

}  // namespace lockstep::dist
