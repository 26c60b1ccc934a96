// Rotary position embedding: Su et al., "RoFormer: enhanced transformer with rotary position
// embedding" (2021), in the half-split form of GPT-NeoX, Llama and Hugging Face.
#pragma once

#include <vector>

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

// How the frequencies are changed for contexts longer than those of the first training.
enum class RotaryScaling {
  kNone,
  kLinear,  // all divided by `factor`: Chen et al., "Extending context window ..." (2023)
  kLlama3,  // as Llama 3.1 does: low frequencies divided by `factor`, high ones kept
};

struct RotaryOptions {
  double theta = 10000;
  RotaryScaling scaling = RotaryScaling::kNone;
  double factor = 1;
  // For kLlama3: frequencies with fewer than `low` periods in `original_length` positions are
  // divided, those with more than `high` kept, those in between interpolated.
  double low = 1, high = 4;
  int64_t original_length = 8192;
  bool reverse = false;  // turns by the negative angles, as nanochat does
  bool operator==(const RotaryOptions&) const = default;
};

// The angle by which pair i of a head turns per position, i < head_size / 2: theta^(-2i /
// head_size), scaled. Throws ArgumentError that names an option out of range, or for an odd head.
std::vector<double> RotaryFrequencies(int64_t head_size, const RotaryOptions& options);

namespace ops {

// [positions, D]: row p holds the D / 2 cosines of p times the frequencies, then their sines,
// computed in f64 and rounded to `dtype`.
Tensor RotaryTable(int64_t positions, int64_t head_size, const RotaryOptions& options, DType dtype,
                   Device device);

// Turns heads by their position: with D = table.dim(1), (x[i], x[i + D/2]) becomes
//   (x[i] cos - x[i + D/2] sin, x[i + D/2] cos + x[i] sin)
// at position first_position + t, or positions[b, t], i32 [B, T], if given, as where documents are
// packed one after another into a row and each begins at 0. x: [B, T, N * D] or [B, T, N, D],
// floating; of its N heads the first `rotated` are turned and the others copied, as v in a joint
// qkv; y: like x. table: RotaryTable's, f64 for an f64 x, else f32. Computes in f32 or wider and
// rounds once. Throws ArgumentError if first_position + T exceeds the table, or on the CPU one of
// the positions; other devices give NaN there. Saves the table and positions.
//
// Turns in place, and leaves the other heads alone, where nothing but the argument holds x: pass
// std::move(qkv). So does backward with the gradient of y, if the graph is not retained. The bits
// do not depend on that.
Tensor RotaryEmbedding(Tensor x, const Tensor& table, int64_t rotated, int64_t first_position = 0,
                       const Tensor& positions = {});

}  // namespace ops

struct RotaryEmbeddingArgs {
  Tensor x;      // [B, T, N, D]
  Tensor table;  // [positions, D]
  int64_t rotated = 0, first_position = 0;
  Tensor positions;        // i32 [B, T], contiguous; undefined: first_position + t
  bool backwards = false;  // turns by the negative angle: the gradient
  Tensor y;                // like x, written; may be x, whose other heads are not touched then
};
inline constinit Slot<void(const RotaryEmbeddingArgs&)> rotary_embedding{"rotary_embedding"};

}  // namespace lockstep
