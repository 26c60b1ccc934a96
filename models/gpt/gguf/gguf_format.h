// Element types of GGUF files (version 3), the format of llama.cpp and what is built on it:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/dtype.h"

namespace lockstep::models {

// Those that Lockstep reads, with the format's numbers; it writes all but Q4_0 and Q6_K.
//
//   Q8_0  32 numbers: an f16 scale (the largest magnitude / 127) and 32 signed bytes
//   Q4_0  32 numbers: an f16 scale and 16 bytes, of which byte i has the numbers i (its low half)
//         and i + 16, each plus 8
//   Q6_K  256 numbers: their low 4 bits, their high 2 bits, 16 scales of 8 bits, and an f16 scale
//         of these. llama-quantize makes the head of a Q4_0 file so.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ8_0 = 8, kQ6_K = 14, kBF16 = 30 };

inline constexpr int64_t kQ8_0Block = 32;       // numbers in a block of Q8_0
inline constexpr int64_t kQ8_0BlockBytes = 34;  // and its bytes

// The type with this number; nullopt if Lockstep does not read it.
std::optional<GgufType> FindGgufType(uint32_t number);
// What the format calls the type with this number: "Q4_K"; "number 99" if that is not known.
std::string GgufTypeName(uint32_t number);
// How many numbers make a block; rows are whole blocks. 1 for types without blocks.
int64_t GgufBlock(GgufType type);
// The bytes of `elements` numbers in whole rows.
int64_t GgufBytes(GgufType type, int64_t elements);
// The dtype of what is read of it: f32 for quantised types.
DType GgufDType(GgufType type);

// The numbers of whole blocks of a quantised type, in f32 with the bits of ggml's
// dequantize_row_*: a product of the scale and an integer (Q6_K: of both scales, then the integer).
// ArgumentError for other types, and for sizes that do not fit.
void Dequantize(GgufType type, std::span<const std::byte> blocks, std::span<float> out);

}  // namespace lockstep::models
