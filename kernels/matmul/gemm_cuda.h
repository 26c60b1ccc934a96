// Matrix products on CUDA, for the ops: matmul, linear, muon.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"

namespace lockstep::cuda {

// C = op(A) op(B), or C += that; row-major and dense; op transposes where requested. For each of a
// batch.
//
// A and B are f32, bf16 or f16, C is any of these. Products are summed in f32 and rounded to C's
// dtype once. cuBLASLt multiplies wherever it can; a plain kernel does the rest: f32 products into
// 16 bits, layouts that cuBLASLt refuses. gelu and its derivative are fused into a 16-bit product;
// for an f32 one they are a separate pass, since cuBLASLt has no fused kernel there. What is slower
// than it could be is noted (core/kernel_choices.h). Equal calls give equal bits.
struct GemmArgs {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kF32;  // of A and B
  const void* a = nullptr;    // [m, k], or [k, m] if transposed
  const void* b = nullptr;    // [k, n], or [n, k] if transposed
  DType c_dtype = DType::kF32;
  void* c = nullptr;  // [m, n]; overlaps no other argument
  bool accumulate = false;
  bool full_f32 = false;  // as in BlasLtMatmul
  int64_t batch = 1;      // matrices follow one another without gaps

  // What happens to a product on its way out. All have C's dtype; not with accumulate.
  const void* bias = nullptr;        // [n], added to each row
  bool gelu = false;                 // C = gelu(op(A) op(B) + bias), in its tanh form
  void* pre_activation = nullptr;    // with gelu: its input, laid out as C; may be null
  const void* gelu_input = nullptr;  // C = (op(A) op(B)) * gelu'(this), laid out as C; no bias
};

void Gemm(Stream stream, const GemmArgs& args);

// out = dy gelu'(z), of n elements; out may be dy.
void MultiplyByGeluDerivative(Stream stream, DType dtype, const void* z, const void* dy, int64_t n,
                              void* out);

}  // namespace lockstep::cuda
