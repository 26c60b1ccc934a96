// Writing GGUF files (version 3), the format of llama.cpp and what is built on it:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor.h"

namespace lockstep::models {

// Element types of tensors, with the format's numbers. Q8_0: blocks of 32 consecutive numbers, each
// an f16 scale (the largest magnitude / 127) and 32 signed bytes.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };

inline constexpr int64_t kQ8_0Block = 32;       // numbers in a block of Q8_0
inline constexpr int64_t kQ8_0BlockBytes = 34;  // and its bytes

// A value of the metadata. Enumerations and flags that are not bool are uint32_t there.
using GgufValue = std::variant<uint32_t, float, bool, std::string, std::vector<std::string>,
                               std::vector<float>, std::vector<int32_t>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  // The outermost dimension comes first, as everywhere in Lockstep; the file has them in reverse.
  Shape shape;
  // Called one after the other when the tensor is written: its elements in row-major order, in one
  // or several tensors of a floating dtype.
  std::vector<std::function<Tensor()>> parts;
};

// The bytes of `elements` numbers in whole rows.
int64_t GgufBytes(GgufType type, int64_t elements);

// Writes a complete file: under another name, which is renamed at the end, so that no reader finds
// half of it; nothing is left of a file that could not be finished. One part of a tensor is in
// memory at a time. Numbers are rounded once, to the nearest (Q8_0 as ggml's
// quantize_row_q8_0_ref).
//
// InputError for a number that is not finite, or that an f16 cannot hold. ArgumentError for names
// that are not unique, a part that does not fit, and for Q8_0 with rows that are not whole blocks.
// IoError.
void WriteGguf(const std::string& path, const GgufMetadata& metadata,
               std::span<const GgufTensor> tensors);

// The smallest number that is infinite in f16.
inline constexpr float kF16Limit = 65520;
// Throws InputError that names the tensor if a number of x, f32 and contiguous, is not finite, or
// is `limit` or more, positive or negative.
void CheckRange(const Tensor& x, float limit, const std::string& name);

// Blocks of Q8_0, x.size() / 32 of them, as bytes: `out` has GgufBytes of them.
void QuantizeQ8_0(std::span<const float> x, std::span<std::byte> out);

}  // namespace lockstep::models
