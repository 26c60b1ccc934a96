// Matrix products by cuBLASLt, with its epilogues.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/stream.h"

namespace lockstep::cuda {

// D = epilogue(op(A) op(B) + beta D) for each of a batch of column-major matrices. A and B are f32,
// bf16 or f16; D has their dtype, or f32 for those of 16 bits. Products are summed in f32.
struct BlasLtMatmul {
  enum class Epilogue {
    kNone,
    kBias,  // + bias[i] in row i of D
    kGelu,  // gelu of that, in its tanh form
    kGeluBias,
    kGeluAux,  // and stores its input to aux, which has D's layout
    kGeluAuxBias,
    kDGelu,  // multiplies by gelu'(aux)
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
  bool full_f32 = false;                             // never TF32 (AllowTf32)
  Epilogue epilogue = Epilogue::kNone;
  const void* bias = nullptr;  // [m] of D's dtype
  void* aux = nullptr;         // [m, n] of D's dtype, written unless kDGelu

  bool operator==(const BlasLtMatmul&) const = default;
};

// Whether the tensor cores may round the elements of f32 matrices to TF32 (10 bits of mantissa)
// before multiplying, which is several times as fast. Process-wide; off by default. The products of
// experts, which are not cuBLASLt's, follow it as well.
void AllowTf32(bool allow);
bool Tf32Allowed();

// Submits the product and returns true. Returns false, having done nothing, if cuBLASLt has no
// algorithm for it (odd strides of 16-bit matrices, alignments of the epilogue). The algorithm is
// the first that cuBLASLt's heuristic proposes for these shapes, strides, dtypes and alignments
// among those that add partial sums in a fixed order. Nothing is timed, so equal calls give equal
// bits.
bool RunBlasLt(Stream stream, const BlasLtMatmul& args);

// How many plans a device keeps at most (those used last), and how many it has now.
inline constexpr size_t kMostBlasLtPlans = 1024;
size_t NumBlasLtPlans(Device device);

}  // namespace lockstep::cuda
