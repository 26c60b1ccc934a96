// cublasLtMatmul: checks operands and enqueues the product.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "cublaslt.h"
#include "cudasim/access.h"
#include "state.h"

namespace cudasim::runtime {
namespace {

// Memory that the product uses.
struct Usage {
  const char* name;
  const void* address;
  size_t size;
  bool write;
};

size_t SpanOf(const Layout& layout) {
  const auto last =
      static_cast<int64_t>(layout.cols - 1) * layout.ld + static_cast<int64_t>(layout.rows);
  return static_cast<size_t>((layout.batch - 1) * layout.batch_stride + last) * SizeOf(layout.type);
}

struct Call {
  Problem problem;
  Operands operands;
  Algorithm algorithm;
  void* workspace = nullptr;
  size_t workspace_size = 0;
  bool reads_c = true;
};

std::vector<Usage> UsesOf(const Call& call) {
  const Problem& problem = call.problem;
  const Operation& operation = problem.operation;
  std::vector<Usage> uses = {
      {"A", call.operands.a, SpanOf(problem.a), false},
      {"B", call.operands.b, SpanOf(problem.b), false},
      {"D", call.operands.d, SpanOf(problem.d), true},
  };
  if (call.reads_c) uses.push_back({"C", call.operands.c, SpanOf(problem.c), false});
  const uint32_t epilogue = operation.epilogue;
  const int32_t bias_type = operation.bias_type < 0 ? problem.d.type : operation.bias_type;
  const bool by_column = (epilogue & CUBLASLT_EPILOGUE_BGRADB) != 0;
  const auto bias_count = static_cast<size_t>(by_column ? problem.n : problem.m);
  const bool gradient =
      (epilogue & (16u | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB)) != 0;
  if (gradient || (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) {
    const auto batches = static_cast<size_t>((problem.d.batch - 1) * operation.bias_stride);
    uses.push_back(
        {"the bias", operation.bias, (batches + bias_count) * SizeOf(bias_type), gradient});
  }
  if ((epilogue & 128u) != 0) {
    Layout aux = problem.d;
    aux.ld = operation.aux_ld;
    aux.batch_stride = operation.aux_stride;
    uses.push_back({"the auxiliary matrix", operation.aux, SpanOf(aux),
                    (epilogue & CUBLASLT_EPILOGUE_GELU) != 0});
  }
  if (call.workspace != nullptr && call.workspace_size > 0) {
    uses.push_back({"the workspace", call.workspace, call.workspace_size, true});
  }
  const size_t scale = problem.operation.scale_type == CUDA_R_64F ? 8 : 4;
  if (call.operands.alpha_on_device != nullptr) {
    uses.push_back({"alpha", call.operands.alpha_on_device, scale, false});
    uses.push_back({"beta", call.operands.beta_on_device, scale, false});
  }
  for (int i = 0; i < 2; ++i) {
    if (operation.scales[i] != nullptr) {
      uses.push_back({"a scale", operation.scales[i], sizeof(float), false});
    }
  }
  return uses;
}

// Finds operands that are not in the device's memory, too small, or overlapping.
std::string FindBug(const std::vector<Usage>& uses) {
  const Lock lock(GetState().mutex);
  for (const Usage& use : uses) {
    const auto block = FindBlock(use.address);
    if (block == nullptr || block->freed ||
        !block->contains(reinterpret_cast<uintptr_t>(use.address))) {
      return std::string("cublasLtMatmul: ") + use.name + " is not in memory of the device";
    }
    if (FindBlock(use.address, use.size) == nullptr) {
      return std::string("cublasLtMatmul: ") + use.name + " (" + std::to_string(use.size) +
             " bytes) goes beyond " + DescribeWithSites(*block);
    }
  }
  for (const Usage& out : uses) {
    for (const Usage& other : uses) {
      // D may be C.
      if (!out.write || &out == &other || other.name == std::string("C")) continue;
      const auto* const a = static_cast<const char*>(out.address);
      const auto* const b = static_cast<const char*>(other.address);
      if (a < b + other.size && b < a + out.size) {
        return std::string("cublasLtMatmul: ") + out.name + " overlaps " + other.name;
      }
    }
  }
  return {};
}

bool IsAligned(const void* pointer, size_t alignment) {
  return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

cublasStatus_t CheckPointers(const Call& call) {
  const Operands& operands = call.operands;
  const void* const pointers[] = {operands.a, operands.b, operands.c, operands.d};
  const Layout* const layouts[] = {&call.problem.a, &call.problem.b, &call.problem.c,
                                   &call.problem.d};
  for (int i = 0; i < 4; ++i) {
    if (i == 2 && !call.reads_c) continue;
    if (pointers[i] == nullptr) return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a null matrix");
    if (!IsAligned(pointers[i], SizeOf(layouts[i]->type))) {
      return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a matrix that is not aligned to its elements");
    }
    if (!IsAligned(pointers[i], call.algorithm.alignment[i])) {
      return Refuse(CUBLAS_STATUS_INVALID_VALUE,
                    "a matrix that is less aligned than the preference promised");
    }
  }
  const Layout& c = call.problem.c;
  const Layout& d = call.problem.d;
  if (call.reads_c && operands.c == operands.d &&
      (c.ld != d.ld || c.batch_stride != d.batch_stride || c.type != d.type)) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "C in place of D with another layout");
  }
  if (call.workspace_size > 0) {
    if (call.workspace == nullptr) {
      return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace that is null");
    }
    if (!IsAligned(call.workspace, 256)) {
      return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace that is not aligned to 256 bytes");
    }
  }
  if (call.algorithm.workspace > call.workspace_size) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "a smaller workspace than the algorithm needs");
  }
  return CUBLAS_STATUS_SUCCESS;
}

void ReadScales(const void* alpha, const void* beta, Call* call) {
  Operands& operands = call->operands;
  if (call->problem.operation.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) {
    operands.alpha_on_device = alpha;
    operands.beta_on_device = beta;
    return;
  }
  const bool wide = call->problem.operation.scale_type == CUDA_R_64F;
  const auto read = [&](const void* from) {
    return wide ? *static_cast<const double*>(from) : *static_cast<const float*>(from);
  };
  operands.alpha = read(alpha);
  operands.beta = read(beta);
  call->reads_c = operands.beta != 0;
}

// Kernels may not be launched on another device's stream.
bool IsOfCurrentDevice(cudaStream_t handle) {
  Lock lock(GetState().mutex);
  const CUstream_st* const stream = Resolve(lock, handle);
  return stream != nullptr && stream->device == GetThread().device;
}

cublasStatus_t Enqueue(const Call& call, cudaStream_t stream) {
  if (!IsOfCurrentDevice(stream)) {
    return Refuse(CUBLAS_STATUS_EXECUTION_FAILED, "a stream of a device that is not current");
  }
  const std::vector<Usage> uses = UsesOf(call);
  const std::string bug = FindBug(uses);
  if (!bug.empty()) {
    ReportBug(-1, Bug::kOutOfBounds, bug);
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  Work work;
  work.type = cudaGraphNodeTypeKernel;
  const Problem& problem = call.problem;
  work.what = "cublasLtMatmul " + std::to_string(problem.m) + " x " + std::to_string(problem.n) +
              " x " + std::to_string(problem.k);
  for (const Usage& use : uses) work.ranges.push_back({use.address, use.size, use.write});
  work.run = [call] {
    // Nobody may rely on the contents of a workspace.
    constexpr size_t kSpoiled = 4096;
    const DeviceAccess access(DeviceAccess::kAllDevices);
    if (call.workspace_size > 0) {
      std::memset(call.workspace, 0xff, std::min(call.workspace_size, kSpoiled));
    }
    Multiply(call.problem, call.operands);
    return cudaSuccess;
  };
  const cudaError_t error = Submit(stream, std::move(work));
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace
}  // namespace cudasim::runtime

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void* alpha, const void* A, cublasLtMatrixLayout_t Adesc,
                              const void* B, cublasLtMatrixLayout_t Bdesc, const void* beta,
                              const void* C, cublasLtMatrixLayout_t Cdesc, void* D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspaceSizeInBytes, cudaStream_t stream) {
  using namespace cudasim::runtime;  // NOLINT
  if (!IsHandle(lightHandle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  Call call;
  const auto status = MakeProblem(computeDesc, Adesc, Bdesc, Cdesc, Ddesc, &call.problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (alpha == nullptr || beta == nullptr) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "alpha or beta is null");
  }
  if (algo != nullptr) {
    call.algorithm = Open(algo);
    if (call.algorithm.magic != Algorithm::kMagic || call.algorithm.split_k < 1) {
      return Refuse(CUBLAS_STATUS_INVALID_VALUE, "an algorithm that no heuristic has returned");
    }
  }
  call.problem.split_k = call.algorithm.split_k;
  call.operands.a = A;
  call.operands.b = B;
  call.operands.c = C;
  call.operands.d = D;
  call.workspace = workspace;
  call.workspace_size = workspaceSizeInBytes;
  ReadScales(alpha, beta, &call);
  const auto pointers = CheckPointers(call);
  if (pointers != CUBLAS_STATUS_SUCCESS) return pointers;
  return Enqueue(call, stream);
}
