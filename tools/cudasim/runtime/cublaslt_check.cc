// Refuses what the real cuBLASLt refuses, and chooses an algorithm.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "cublaslt.h"

namespace cudasim::runtime {

cublasStatus_t Refuse(cublasStatus_t status, const char* reason) {
  static const bool verbose = std::getenv("CUDASIM_VERBOSE") != nullptr;
  if (verbose) std::fprintf(stderr, "cudasim: cuBLASLt refuses: %s\n", reason);
  return status;
}

size_t SizeOf(int32_t type) {
  switch (type) {
    case CUDA_R_64F:
      return 8;
    case CUDA_R_32F:
      return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
      return 1;
    default:
      return 0;
  }
}

namespace {

cublasStatus_t Invalid(const char* reason) { return Refuse(CUBLAS_STATUS_INVALID_VALUE, reason); }
cublasStatus_t Unsupported(const char* reason) {
  return Refuse(CUBLAS_STATUS_NOT_SUPPORTED, reason);
}

bool IsF8(int32_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

cublasStatus_t CheckLayout(const Layout& layout) {
  if (SizeOf(layout.type) == 0) return Unsupported("a matrix of this type");
  if (layout.order != CUBLASLT_ORDER_COL) return Unsupported("an order other than column-major");
  if (layout.rows == 0 || layout.cols == 0) return Invalid("an empty matrix");
  constexpr uint64_t kMost = 0x7fffffff;
  if (layout.rows > kMost || layout.cols > kMost) return Unsupported("over 2^31 - 1 rows");
  if (layout.ld < static_cast<int64_t>(layout.rows)) {
    return Invalid("a leading dimension below the number of rows");
  }
  if (layout.batch < 1) return Invalid("a batch of no matrices");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CheckShapes(Problem* problem) {
  const auto& transpose = problem->operation.transpose;
  for (const int32_t one : transpose) {
    if (one < CUBLAS_OP_N || one > CUBLAS_OP_C) return Invalid("an unknown transposition");
  }
  if (transpose[2] != CUBLAS_OP_N) return Unsupported("a transposed C");
  const bool ta = transpose[0] != CUBLAS_OP_N;
  const bool tb = transpose[1] != CUBLAS_OP_N;
  const Layout& a = problem->a;
  const Layout& b = problem->b;
  const Layout& c = problem->c;
  const Layout& d = problem->d;
  problem->m = static_cast<int64_t>(ta ? a.cols : a.rows);
  problem->k = static_cast<int64_t>(ta ? a.rows : a.cols);
  problem->n = static_cast<int64_t>(tb ? b.rows : b.cols);
  const auto k_of_b = static_cast<int64_t>(tb ? b.cols : b.rows);
  if (problem->k != k_of_b) return Invalid("op(A) does not have as many columns as op(B) has rows");
  for (const Layout* out : {&c, &d}) {
    if (static_cast<int64_t>(out->rows) != problem->m ||
        static_cast<int64_t>(out->cols) != problem->n) {
      return Invalid("C or D does not have the shape of op(A) op(B)");
    }
  }
  if (a.batch != d.batch || b.batch != d.batch || c.batch != d.batch) {
    return Invalid("batches of different sizes");
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Valid combinations of the types of A, B, C, D, of the computation, and of alpha and beta.
cublasStatus_t CheckTypes(const Problem& problem) {
  const int32_t a = problem.a.type;
  const int32_t b = problem.b.type;
  const int32_t c = problem.c.type;
  const int32_t d = problem.d.type;
  const Operation& operation = problem.operation;
  const auto f32_scales = [&] { return operation.scale_type == CUDA_R_32F; };
  switch (operation.compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      if (a != CUDA_R_64F || b != a || c != a || d != a || operation.scale_type != a) {
        return Unsupported("computing in f64 with another type");
      }
      break;
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      if (a != CUDA_R_32F || b != a || c != a || d != a || !f32_scales()) {
        return Unsupported("fast computing in f32 with matrices of another type");
      }
      break;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      if (!f32_scales()) return Unsupported("alpha and beta that are not f32");
      if (IsF8(a) || IsF8(b)) {
        if (!IsF8(a) || !IsF8(b) || (a == b && a == CUDA_R_8F_E5M2)) {
          return Unsupported("these types of fp8");
        }
        if (IsF8(c) || IsF8(d) || d == CUDA_R_64F || c != d) {
          return Unsupported("fp8 with these types of C and D (fp8 results are not simulated)");
        }
        break;
      }
      if (a != b || a == CUDA_R_64F) return Unsupported("these types of A and B");
      if (c != d || (d != a && d != CUDA_R_32F)) return Unsupported("these types of C and D");
      break;
    default:
      return Unsupported("this type of computing");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CheckF8(const Problem& problem) {
  const Operation& operation = problem.operation;
  if (!IsF8(problem.a.type)) {
    for (const float* scale : operation.scales) {
      if (scale != nullptr) return Unsupported("scale pointers without fp8 matrices");
    }
    if (operation.amax != nullptr) return Unsupported("an amax pointer without fp8 results");
    return CUBLAS_STATUS_SUCCESS;
  }
  if (operation.transpose[0] == CUBLAS_OP_N || operation.transpose[1] != CUBLAS_OP_N) {
    return Unsupported("fp8 without A transposed and B not transposed");
  }
  if (problem.m % 16 != 0 || problem.n % 16 != 0 || problem.k % 16 != 0 || problem.a.ld % 16 != 0 ||
      problem.b.ld % 16 != 0) {
    return Unsupported("fp8 with dimensions that are not multiples of 16");
  }
  if (operation.scales[2] != nullptr || operation.scales[3] != nullptr ||
      operation.amax != nullptr) {
    return Unsupported("scales or amax of results that are not fp8");
  }
  return CUBLAS_STATUS_SUCCESS;
}

bool IsEpilogue(uint32_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
      return true;
    default:
      return false;
  }
}

cublasStatus_t CheckEpilogue(const Problem& problem) {
  const Operation& operation = problem.operation;
  const uint32_t epilogue = operation.epilogue;
  if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (!IsEpilogue(epilogue)) return Unsupported("this epilogue (masks of ReLU are not simulated)");
  const int32_t d = problem.d.type;
  if (d == CUDA_R_64F) return Unsupported("an epilogue in f64");
  constexpr size_t kAlignment = 16;
  const bool gradient =
      (epilogue & (16u | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) != 0;
  if (gradient || (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {
    if (operation.bias == nullptr) return Invalid("no pointer to the bias");
    if (reinterpret_cast<uintptr_t>(operation.bias) % kAlignment != 0) {
      return Unsupported("a bias that is not aligned to 16 bytes");
    }
    const int32_t type = operation.bias_type < 0 ? d : operation.bias_type;
    if (type != d && !IsF8(problem.a.type)) return Unsupported("a bias whose type is not D's");
    if (gradient && problem.d.batch > 1) return Unsupported("bias gradients of batches");
  }
  if ((epilogue & 128u) != 0) {
    if (operation.aux == nullptr) return Invalid("no pointer to the auxiliary matrix");
    if (operation.aux_ld < problem.m) return Invalid("an auxiliary ld below the rows of D");
    if (operation.aux_ld % 8 != 0 || operation.aux_stride % 8 != 0) {
      return Unsupported("an auxiliary ld or stride that is not a multiple of 8");
    }
    if (reinterpret_cast<uintptr_t>(operation.aux) % kAlignment != 0) {
      return Unsupported("an auxiliary matrix that is not aligned to 16 bytes");
    }
    if (operation.aux_type >= 0 && operation.aux_type != d) {
      return Invalid("an auxiliary matrix whose type is not D's");
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Its kernels may rely on all that the preference promises.
Algorithm MakeAlgorithm(const Preference& preference) {
  Algorithm algorithm;
  std::ranges::copy(preference.alignment, algorithm.alignment);
  return algorithm;
}

// For little output and a long sum, the real library adds up parts in the workspace.
constexpr int64_t kSplitAtK = 4096;
constexpr int32_t kSplits = 4;

bool ProfitsFromSplit(const Problem& problem) {
  return problem.k >= kSplitAtK && problem.m * problem.n <= 128 * 128 && problem.d.batch == 1 &&
         problem.operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

cublasLtMatmulHeuristicResult_t Result(const Algorithm& algorithm) {
  cublasLtMatmulHeuristicResult_t result = {};
  new (result.algo.data) Algorithm(algorithm);
  result.workspaceSize = algorithm.workspace;
  result.state = CUBLAS_STATUS_SUCCESS;
  result.wavesCount = 1;
  return result;
}

}  // namespace

cublasStatus_t MakeProblem(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                           cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                           cublasLtMatrixLayout_t d, Problem* problem) {
  if (operation == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr) {
    return Invalid("a descriptor is null");
  }
  problem->operation = Open(operation);
  problem->a = Open(a);
  problem->b = Open(b);
  problem->c = Open(c);
  problem->d = Open(d);
  for (const Layout* layout : {&problem->a, &problem->b, &problem->c, &problem->d}) {
    const cublasStatus_t status = CheckLayout(*layout);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  if (const auto status = CheckShapes(problem); status != CUBLAS_STATUS_SUCCESS) return status;
  if (const auto status = CheckTypes(*problem); status != CUBLAS_STATUS_SUCCESS) return status;
  if (const auto status = CheckF8(*problem); status != CUBLAS_STATUS_SUCCESS) return status;
  const int32_t mode = problem->operation.pointer_mode;
  if (mode != CUBLASLT_POINTER_MODE_HOST && mode != CUBLASLT_POINTER_MODE_DEVICE) {
    return Unsupported("vectors of alpha");
  }
  return CheckEpilogue(*problem);
}

}  // namespace cudasim::runtime

namespace rt = cudasim::runtime;

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int* returnAlgoCount) {
  if (!rt::IsHandle(lightHandle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (preference == nullptr || requestedAlgoCount <= 0 || heuristicResultsArray == nullptr ||
      returnAlgoCount == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *returnAlgoCount = 0;
  rt::Problem problem;
  const auto status = rt::MakeProblem(operationDesc, Adesc, Bdesc, Cdesc, Ddesc, &problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const rt::Preference& wish = rt::Open(preference);
  std::vector<rt::Algorithm> found;
  rt::Algorithm plain = rt::MakeAlgorithm(wish);
  if (rt::ProfitsFromSplit(problem) &&
      (wish.reduction_mask & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0) {
    rt::Algorithm split = plain;
    split.split_k = rt::kSplits;
    // In units of the alignment that a workspace needs.
    const auto bytes = static_cast<uint64_t>(problem.m * problem.n) * rt::kSplits * sizeof(double);
    split.workspace = (bytes + 255) / 256 * 256;
    if (split.workspace <= wish.workspace) found.push_back(split);
  }
  found.push_back(plain);
  for (const rt::Algorithm& algorithm : found) {
    if (*returnAlgoCount == requestedAlgoCount) break;
    heuristicResultsArray[(*returnAlgoCount)++] = rt::Result(algorithm);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t lightHandle,
                                       cublasLtMatmulDesc_t operationDesc,
                                       cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
                                       cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!rt::IsHandle(lightHandle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (algo == nullptr || result == nullptr || rt::Open(algo).magic != rt::Algorithm::kMagic) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  rt::Problem problem;
  const auto status = rt::MakeProblem(operationDesc, Adesc, Bdesc, Cdesc, Ddesc, &problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  *result = rt::Result(rt::Open(algo));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr,
                                                    void* buf, size_t sizeInBytes,
                                                    size_t* sizeWritten) {
  if (algo == nullptr || buf == nullptr || rt::Open(algo).magic != rt::Algorithm::kMagic ||
      sizeInBytes != sizeof(int32_t)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const rt::Algorithm& algorithm = rt::Open(algo);
  int32_t value = 0;
  if (attr == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) value = algorithm.split_k;
  if (attr == CUBLASLT_ALGO_CONFIG_ID) value = algorithm.split_k > 1 ? 1 : 0;
  if (attr == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME && algorithm.split_k > 1) {
    value = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  }
  *static_cast<int32_t*>(buf) = value;
  if (sizeWritten != nullptr) *sizeWritten = sizeof(value);
  return CUBLAS_STATUS_SUCCESS;
}
