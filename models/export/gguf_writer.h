// Writing GGUF files (version 3), the format of llama.cpp and what is built on it:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor.h"
#include "models/gpt/gguf/gguf_format.h"

namespace lockstep::models {

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
