// The internals of the stand-in for cuBLASLt.
#ifndef CUDASIM_RUNTIME_CUBLASLT_H_
#define CUDASIM_RUNTIME_CUBLASLT_H_

#include <cstddef>
#include <cstdint>

#include "cublasLt.h"

namespace cudasim::runtime {

// The contents of the opaque structures.
struct Layout {
  cudaDataType_t type = CUDA_R_32F;
  int32_t order = CUBLASLT_ORDER_COL;
  uint64_t rows = 0;
  uint64_t cols = 0;
  int64_t ld = 0;
  int64_t batch_stride = 0;
  int32_t batch = 1;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));

struct Operation {
  int32_t compute = CUBLAS_COMPUTE_32F;
  int32_t scale_type = CUDA_R_32F;
  int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  int32_t transpose[3] = {CUBLAS_OP_N, CUBLAS_OP_N, CUBLAS_OP_N};  // A, B, C.
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int32_t bias_type = -1;
  void* bias = nullptr;
  int64_t bias_stride = 0;
  void* aux = nullptr;
  int64_t aux_ld = 0;
  int64_t aux_stride = 0;
  int32_t aux_type = -1;
  int32_t sm_count = 0;
  const float* scales[4] = {};  // A, B, C, D.
  float* amax = nullptr;
  int8_t fast_accumulation = 0;
};
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));

struct Preference {
  uint32_t search_mode = 0;
  uint32_t reduction_mask = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint64_t workspace = 0;
  uint32_t alignment[4] = {256, 256, 256, 256};
  float waves = 0;
  uint64_t implementations = ~uint64_t{0};
};
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

struct Algorithm {
  static constexpr uint32_t kMagic = 0x6c744c62;
  uint32_t magic = kMagic;
  int32_t split_k = 1;  // Parts of the sum over k that are summed separately, in the workspace.
  uint64_t workspace = 0;
  uint32_t alignment[4] = {1, 1, 1, 1};  // Required of A, B, C, D.
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

// A valid matrix product.
struct Problem {
  Operation operation;
  Layout a, b, c, d;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int32_t split_k = 1;
};

const Layout& Open(cublasLtMatrixLayout_t layout);
const Operation& Open(cublasLtMatmulDesc_t operation);
const Preference& Open(cublasLtMatmulPreference_t preference);
const Algorithm& Open(const cublasLtMatmulAlgo_t* algorithm);

bool IsHandle(cublasLtHandle_t handle);
size_t SizeOf(int32_t type);  // 0 if products do not support the type.

// Returns the status of the real library; if CUDASIM_VERBOSE is set, a line on stderr explains
// NOT_SUPPORTED and INVALID_VALUE.
cublasStatus_t MakeProblem(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                           cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                           cublasLtMatrixLayout_t d, Problem* problem);
cublasStatus_t Refuse(cublasStatus_t status, const char* reason);

struct Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  // By value, or their addresses on the device.
  double alpha = 0;
  double beta = 0;
  const void* alpha_on_device = nullptr;
  const void* beta_on_device = nullptr;
};

// Computes the product. Called on a stream's thread with access to the memory. The order of the
// sums over k depends only on the shape.
void Multiply(const Problem& problem, const Operands& operands);

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_CUBLASLT_H_
