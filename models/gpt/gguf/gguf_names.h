// What llama.cpp calls the families and their tensors.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/tensor.h"
#include "models/gpt/gpt_config.h"

namespace lockstep::models {

// An architecture of llama.cpp, for a family of Hugging Face's.
struct GgufArchitecture {
  std::string_view model_type;      // of config.json
  std::string_view name;            // general.architecture
  bool neighbouring_pairs = false;  // rotates (2i, 2i + 1), not (i, i + D/2)
  bool square = false;              // heads * head_dim must be the width
  bool windows = false;             // has layers with a window, by attention.sliding_window_pattern
  bool own_head = false;            // a tied head must be written, too
  int64_t large_layers = 0;  // a model with this many layers scales attention by width / heads
};
std::span<const GgufArchitecture> GgufArchitectures();

// A tensor of Hugging Face's folder in GGUF: where it is, and what is done with it to write it.
struct GgufPlace {
  std::string name;          // "blk.3.attn_k.weight"
  int64_t expert = -1;       // the slice of a stacked tensor; -1: it is not stacked
  bool is_f32 = false;       // whatever the type of other matrices
  bool transposed = false;   // GPT-2's matrices
  bool plus_one = false;     // Gemma's norms
  bool interleaved = false;  // the rows of each head of queries and keys, see Interleaved
};
// `tensor`: a name that ToHfTensors gives, or ModuleRowsOf. ArgumentError if GGUF has none for it.
GgufPlace GgufPlaceOf(const GgufArchitecture& architecture, const GptConfig& config,
                      const std::string& tensor);

// Rows of each head from split halves to neighbouring pairs: row i of D goes to 2i, D/2 + i to
// 2i + 1. And back.
Tensor Interleaved(const Tensor& x, int64_t head_dim);
Tensor Deinterleaved(const Tensor& x, int64_t head_dim);
// x + y, in f32.
Tensor PlusNumber(const Tensor& x, float y);

}  // namespace lockstep::models
