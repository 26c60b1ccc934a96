// Matrix products on the CPU, for the ops: linear, matmul.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace lockstep::cpu {

// C = op(A) op(B), or C += that; row-major, op transposes where requested.
//
// A and B are f64, f32, bf16 or f16; C is any of these. Products are summed in f64 if A is, else in
// f32, and rounded to C's dtype once. oneDNN multiplies f32 and bf16, Eigen f64; tiles of f16 are
// converted to f32 first.
//
// The bits of C are a function of the arguments' shapes and values (and of the instruction set),
// not of the number of threads: C is cut into tiles, one thread computes a tile, and a tile's sum
// over k is never divided between threads. Where HasPackedProducts(), the bits of an element of an
// f32, bf16 or f16 product are a function of its row of A, its column of B, and k: not of m, n,
// strides, transposes or tiles. (Products by a transposed B of fewer than 8 rows, as in generation,
// are the exception.) Elsewhere tiles depend only on the shape.
//
// Signals may be handled at any time: the stack pointer stays on the thread's stack, or the
// thread's signals wait.
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

  // Several products of the same shape: elements from one matrix to the next; 0 repeats A or B.
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;

  // What happens to a tile while it is in the cache. Not with accumulate.
  const void* bias = nullptr;        // [n] of c_dtype, added to each row
  bool gelu = false;                 // C = gelu(op(A) op(B) + bias)
  void* pre_activation = nullptr;    // with gelu: its input, laid out as C; may be null
  const void* gelu_input = nullptr;  // C = (op(A) op(B)) * gelu'(this), laid out as C; no bias

  // bf16 is multiplied by oneDNN where HasBF16Products(). Elsewhere tiles are converted to f32
  // first; tests choose that.
  enum class BF16Products { kByCpu, kConverted } bf16 = BF16Products::kByCpu;
};

void Gemm(const GemmArgs& args);

// Whether oneDNN has packed kernels for this CPU: in f32, with AVX-512, and in bf16, with
// AVX512_BF16 or AMX.
bool HasPackedProducts();
bool HasBF16Products();

// Products that do not depend on each other: the threads go from one to the next without waiting.
// The bits are those of one call each.
void Gemm(std::span<const GemmArgs> products);

namespace internal {

struct GemmTile {
  int64_t m, n;
};
// The tile for one product of this shape, out of `batch` of them, whose elements have `element`
// bytes; 0 threads: for any number of threads, which share no panels.
GemmTile ChooseGemmTile(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                        int64_t batch, int64_t element, int threads);

}  // namespace internal

}  // namespace lockstep::cpu
