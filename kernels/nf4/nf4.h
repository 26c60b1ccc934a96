// Frozen matrices of 4-bit numbers, as bitsandbytes stores them, and products with them: Dettmers
// et al., "QLoRA: efficient finetuning of quantized LLMs" (2023).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/linear/linear.h"

namespace lockstep {

// The values that 4 bits stand for: quantiles of the normal distribution.
inline constexpr std::array<float, 16> kNf4Code = {-1.0f,
                                                   -0.6961928009986877f,
                                                   -0.5250730514526367f,
                                                   -0.39491748809814453f,
                                                   -0.28444138169288635f,
                                                   -0.18477343022823334f,
                                                   -0.09105003625154495f,
                                                   0.0f,
                                                   0.07958029955625534f,
                                                   0.16093020141124725f,
                                                   0.24611230194568634f,
                                                   0.33791524171829224f,
                                                   0.44070982933044434f,
                                                   0.5626170039176941f,
                                                   0.7229568362236023f,
                                                   1.0f};
// Values that share a scale, and scales that share one where they are quantised too.
inline constexpr int64_t kNf4Block = 64, kNf4Group = 256;

// A matrix [rows, columns] in 4 bits a value. In row-major order each 64 values are a block,
// whatever the rows, and the last one may be shorter. Value i is kNf4Code[code of i] * scale of its
// block, a product in f32. The scales are f32, 4.5 bits a value in all; or, double quantised, 8-bit
// numbers q that stand for map[q] * scale of its 256 blocks + offset, two roundings in f32: 4.127
// bits a value.
struct Nf4Matrix {
  // Where in `data` is what, in bytes; all but the last two are f32.
  struct Layout {
    int64_t blocks = 0, groups = 0;  // groups: 0 unless double quantised
    int64_t map = 0;                 // [256], and with it
    int64_t offset = 0;              // [1]
    int64_t group_scales = 0;        // [groups]; else, from byte 0,
    int64_t scales = 0;              // [blocks], or u8 [blocks]
    int64_t codes = 0;               // u8: two values a byte, the first in the upper half
    int64_t bytes = 0;
  };

  Shape shape;  // [rows, columns]
  bool double_quantized = true;
  Tensor data;  // u8 [layout().bytes], contiguous

  // Without values; throws ArgumentError unless the shape has two dimensions.
  static Nf4Matrix Empty(const Shape& shape, bool double_quantized, Device device = kCpu);
  Layout layout() const;
  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return shape[1]; }
};

// The 256 values of a signed 8-bit number with a dynamic exponent, in ascending order, with the
// bits that bitsandbytes computes: Dettmers et al., "8-bit optimizers via block-wise quantization"
// (2022).
const std::array<float, 256>& DynamicMap();

namespace ops {

// The nearest matrix of this kind: each code, and each 8-bit scale, is the nearest one (of two
// equally near the lower), and the offset is the mean of the scales. weight [rows, columns], of any
// floating dtype, device and strides; f64 is rounded to f32 first. Computed on the CPU; the result
// is on the weight's device. No gradient. Throws ArgumentError if a weight is not finite.
Nf4Matrix Nf4Quantize(const Tensor& weight, bool double_quantized = true);

// Its values, rounded to `dtype`, floating, once.
Tensor Nf4Dequantize(const Nf4Matrix& matrix, DType dtype);

// y = x weight^T + bias with a frozen weight, whose values are rounded to x's dtype.
// x [..., K]; weight: matrices [N_i, K], concatenated along dimension 0, N rows in all, on x's
// device; bias [N] or undefined, of x's dtype; y [..., N]. Gradients of x and of the bias. Forward
// and backward dequantise the weight a panel at a time, of at most kNf4PanelBytes unless 64 rows or
// columns have more, and multiply as Linear does. A panel is some rows of the weight in forward,
// and some of its columns in backward, so no sum is cut: where products have bits that do not
// depend on their size (kernels/cpu/gemm.h) they are those of Linear. Saves the 4-bit weight.
Tensor Nf4Linear(const Tensor& x, std::span<const Nf4Matrix> weight, const Tensor& bias = {});

}  // namespace ops

inline constexpr int64_t kNf4PanelBytes = 32 << 20;

// out [m, n], contiguous, of any floating dtype: the matrix from (row, column) on.
struct Nf4DequantizeArgs {
  Nf4Matrix matrix;
  int64_t row = 0, column = 0;
  Tensor out;
};
inline constinit Slot<void(const Nf4DequantizeArgs&)> nf4_dequantize{"nf4_dequantize"};

}  // namespace lockstep
