// Matrix products on the CPU, for the ops: linear, matmul.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/dtype.h"

namespace lockstep::cpu {

// C = op(A) op(B), or C += that; row-major, op transposes where requested.
//
// A and B are f64, f32, bf16 or f16; C is any of these. Products are summed in f64 if A is, else in
// f32, and rounded to C's dtype once.
//
// The law: an element is S0 + S1 + ..., each S a chain of fused multiply-adds from zero over the
// next 256 of k, and C + S0 + S1 + ... where it accumulates (C + (S0 + S1 + ...) if C has another
// dtype), with one rounding each. So it depends on its row of A, its column of B and k alone:
// neither shape, leading dimensions, transposes, threads, tiles nor instruction set decide its
// bits, and k may be cut at multiples of 256. Which NaN an element is does not count.
//
// There are two exceptions. Up to 16 rows of ops::Linear have an order of their own
// (kernels/linear/linear_few_rows_cpu.h). And bf16 is multiplied by oneDNN where the CPU has units
// for it (HasBF16Products): an element then depends on the same, but also on the CPU's units and on
// oneDNN's version.
struct GemmArgs {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;  // of A and B
  const void* a = nullptr;    // [m, k], or [k, m] if transposed
  int64_t lda = 0;            // elements from one stored row to the next
  const void* b = nullptr;    // [k, n], or [n, k] if transposed
  int64_t ldb = 0;
  DType c_dtype = DType::kF32;
  void* c = nullptr;  // [m, n]; overlaps no other argument
  int64_t ldc = 0;
  bool accumulate = false;  // C += instead of C =
  // C = C^T, which the caller knows, as of X X^T: the elements below the diagonal are computed, and
  // copied to the others, which have the same bits. Without accumulate and what follows.
  bool symmetric = false;

  // Several products of the same shape: elements from one matrix to the next; 0 repeats A or B.
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;

  // What happens to a tile while it is in the cache. Not with accumulate.
  const void* bias = nullptr;        // [n] of c_dtype, added to each row
  bool gelu = false;                 // C = gelu(op(A) op(B) + bias)
  void* pre_activation = nullptr;    // with gelu: its input, laid out as C; may be null
  const void* gelu_input = nullptr;  // C = (op(A) op(B)) * gelu'(this), laid out as C; no bias

  // bf16 is multiplied by oneDNN where HasBF16Products(), else as f32; tests choose that.
  enum class BF16Products { kByCpu, kConverted } bf16 = BF16Products::kByCpu;
};

// The same with the leading dimensions of matrices without gaps.
inline GemmArgs Dense(GemmArgs g) {
  g.lda = g.transpose_a ? g.m : g.k;
  g.ldb = g.transpose_b ? g.k : g.n;
  g.ldc = g.n;
  return g;
}

void Gemm(const GemmArgs& args);

// Whether oneDNN multiplies bf16: where the CPU has units for it (AVX512_BF16 or AMX), unless they
// are forbidden. Not while something multiplies.
bool HasBF16Products();
void AllowBF16Products(bool allow);

// What decides the bits of products of this dtype besides their operands: "f32 law 1", or "oneDNN
// 2.6.3 on avx512_bf16".
std::string DescribeProducts(DType dtype);

// Products that do not depend on each other: the threads go from one to the next without waiting.
// The bits are those of one call each.
void Gemm(std::span<const GemmArgs> products);

namespace internal {

struct GemmTile {
  int64_t m, n;
};
// The tile for one product of this shape, out of `batch` of them, whose elements have `element`
// bytes.
GemmTile ChooseGemmTile(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                        int64_t lda, int64_t batch, int64_t element, bool by_onednn, int threads);

}  // namespace internal

}  // namespace lockstep::cpu
