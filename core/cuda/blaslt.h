// Matrix products by cuBLASLt, with what it can do to a product on the way out.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"

namespace lockstep::cuda {

// D = epilogue(op(A) op(B) + beta D), of column-major matrices, for each of a batch. A and B are
// f32 or bf16, D is of their dtype, or f32 for bf16. Products are summed in f32.
struct BlasLtMatmul {
  enum class Epilogue {
    kNone,
    kBias,  // + bias[i] in row i of D
    kGelu,  // gelu of that, in its tanh form
    kGeluBias,
    kGeluAux,  // and what went into it to aux, which lies as D does
    kGeluAuxBias,
    kDGelu,  // times gelu' of aux, which is read
  };

  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::kF32, d_dtype = DType::kF32;
  const void *a = nullptr, *b = nullptr;
  void* d = nullptr;
  int64_t lda = 0, ldb = 0, ldd = 0;  // elements from one column to the next
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_d = 0;  // elements from one matrix to the next
  bool accumulate = false;                           // beta = 1
  Epilogue epilogue = Epilogue::kNone;
  const void* bias = nullptr;  // [m] of D's dtype
  void* aux = nullptr;         // [m, n] of D's dtype, written unless kDGelu

  bool operator==(const BlasLtMatmul&) const = default;
};

// Whether the tensor cores may round the elements of f32 matrices to TF32 (10 bits of mantissa)
// before they multiply them: several times as fast. Of the whole process; at first false.
void AllowTf32(bool allow);

// Submits the product and returns true; false where cuBLASLt has no algorithm for it (odd strides
// of 16-bit matrices, alignments of the epilogue): then nothing happened. The algorithm is the
// first of cuBLASLt's heuristic for these shapes, strides, dtypes and alignments, asked for once
// per device and process, among those that add partial sums in a fixed order; nothing is timed. So
// equal calls give equal bits.
bool RunBlasLt(Stream stream, const BlasLtMatmul& args);

}  // namespace lockstep::cuda
