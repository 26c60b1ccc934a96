// Handles, descriptors and their attributes.
#include <cstring>
#include <mutex>
#include <new>
#include <set>

#include "cublaslt.h"
#include "limits.h"

struct cublasLtContext {};

namespace cudasim::runtime {
namespace {

struct Handles {
  std::mutex mutex;
  std::set<cublasLtHandle_t> live;
};

Handles& GetHandles() {
  static auto* const handles = new Handles;
  return *handles;
}

// A member of a descriptor.
struct Field {
  void* data = nullptr;
  size_t size = 0;
};

template <typename T>
Field At(T* member) {
  return {const_cast<void*>(static_cast<const volatile void*>(member)), sizeof(T)};
}

Field Find(Layout* layout, int attribute) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return At(&layout->type);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return At(&layout->order);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return At(&layout->rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return At(&layout->cols);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return At(&layout->ld);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return At(&layout->batch);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return At(&layout->batch_stride);
    default:
      return {};
  }
}

Field Find(Operation* operation, int attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return At(&operation->compute);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return At(&operation->scale_type);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return At(&operation->pointer_mode);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return At(&operation->transpose[0]);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return At(&operation->transpose[1]);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      return At(&operation->transpose[2]);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return At(&operation->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return At(&operation->bias);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      return At(&operation->bias_stride);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return At(&operation->aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return At(&operation->aux_ld);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
      return At(&operation->aux_stride);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return At(&operation->sm_count);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return At(&operation->scales[0]);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return At(&operation->scales[1]);
    case CUBLASLT_MATMUL_DESC_C_SCALE_POINTER:
      return At(&operation->scales[2]);
    case CUBLASLT_MATMUL_DESC_D_SCALE_POINTER:
      return At(&operation->scales[3]);
    case CUBLASLT_MATMUL_DESC_AMAX_D_POINTER:
      return At(&operation->amax);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return At(&operation->aux_type);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return At(&operation->fast_accumulation);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return At(&operation->bias_type);
    default:
      return {};
  }
}

Field Find(Preference* preference, int attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return At(&preference->search_mode);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return At(&preference->workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return At(&preference->reduction_mask);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return At(&preference->alignment[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return At(&preference->alignment[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return At(&preference->alignment[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return At(&preference->alignment[3]);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
      return At(&preference->waves);
    case CUBLASLT_MATMUL_PREF_IMPL_MASK:
      return At(&preference->implementations);
    default:
      return {};
  }
}

template <typename Inner, typename Opaque>
Inner* Inside(Opaque* opaque) {
  return reinterpret_cast<Inner*>(opaque->data);
}

template <typename Inner, typename Opaque>
cublasStatus_t Init(Opaque* opaque, size_t size, const Inner& value) {
  if (opaque == nullptr || size < sizeof(Opaque)) return CUBLAS_STATUS_INVALID_VALUE;
  *opaque = {};
  new (opaque->data) Inner(value);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Inner, typename Opaque>
cublasStatus_t Create(Opaque** result, const Inner& value) {
  if (result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *result = new Opaque;
  return Init(*result, sizeof(Opaque), value);
}

template <typename Opaque>
cublasStatus_t Destroy(Opaque* opaque) {
  delete opaque;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Inner, typename Opaque>
cublasStatus_t Set(Opaque* opaque, int attribute, const void* value, size_t size) {
  if (opaque == nullptr || value == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const Field field = Find(Inside<Inner>(opaque), attribute);
  if (field.data == nullptr) return Refuse(CUBLAS_STATUS_INVALID_VALUE, "an unknown attribute");
  if (size != field.size) {
    return Refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute's value of the wrong size");
  }
  std::memcpy(field.data, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Inner, typename Opaque>
cublasStatus_t Get(Opaque* opaque, int attribute, void* value, size_t size, size_t* written) {
  if (opaque == nullptr || (size == 0 && written == nullptr) || (size != 0 && value == nullptr)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Field field = Find(Inside<Inner>(opaque), attribute);
  if (field.data == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (written != nullptr) *written = field.size;
  if (size == 0) return CUBLAS_STATUS_SUCCESS;
  if (size != field.size) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, field.data, size);
  return CUBLAS_STATUS_SUCCESS;
}

Layout MakeLayout(cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld) {
  Layout layout;
  layout.type = type;
  layout.rows = rows;
  layout.cols = cols;
  layout.ld = ld;
  return layout;
}

Operation MakeOperation(cublasComputeType_t compute, cudaDataType_t scale) {
  Operation operation;
  operation.compute = compute;
  operation.scale_type = scale;
  return operation;
}

}  // namespace

const Layout& Open(cublasLtMatrixLayout_t layout) { return *Inside<Layout>(layout); }
const Operation& Open(cublasLtMatmulDesc_t operation) { return *Inside<Operation>(operation); }
const Preference& Open(cublasLtMatmulPreference_t preference) {
  return *Inside<Preference>(preference);
}
const Algorithm& Open(const cublasLtMatmulAlgo_t* algorithm) {
  return *reinterpret_cast<const Algorithm*>(algorithm->data);
}

bool IsHandle(cublasLtHandle_t handle) {
  Handles& handles = GetHandles();
  const std::lock_guard<std::mutex> guard(handles.mutex);
  return handles.live.count(handle) != 0;
}

}  // namespace cudasim::runtime

namespace rt = cudasim::runtime;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* lightHandle) {
  if (lightHandle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  rt::Handles& handles = rt::GetHandles();
  const std::lock_guard<std::mutex> guard(handles.mutex);
  *lightHandle = new cublasLtContext;
  handles.live.insert(*lightHandle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) {
  rt::Handles& handles = rt::GetHandles();
  const std::lock_guard<std::mutex> guard(handles.mutex);
  if (handles.live.erase(lightHandle) == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete lightHandle;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the GPU program failed to execute";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the requested functionality is not supported";
    default:
      return cublasLtGetStatusName(status);
  }
}

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion() { return rt::kCudaVersion; }

cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int* value) {
  if (value == nullptr || type < MAJOR_VERSION || type > PATCH_LEVEL) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *value = type == MAJOR_VERSION ? CUBLAS_VERSION / 10000 : 0;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t matLayout, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t cols,
                                                 int64_t ld) {
  return rt::Init(matLayout, size, rt::MakeLayout(type, rows, cols, ld));
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matLayout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  return rt::Create(matLayout, rt::MakeLayout(type, rows, cols, ld));
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout) {
  return rt::Destroy(matLayout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void* buf, size_t sizeInBytes) {
  return rt::Set<rt::Layout>(matLayout, attr, buf, sizeInBytes);
}
cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t matLayout,
                                                cublasLtMatrixLayoutAttribute_t attr, void* buf,
                                                size_t sizeInBytes, size_t* sizeWritten) {
  return rt::Get<rt::Layout>(matLayout, attr, buf, sizeInBytes, sizeWritten);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t matmulDesc, size_t size,
                                               cublasComputeType_t computeType,
                                               cudaDataType_t scaleType) {
  return rt::Init(matmulDesc, size, rt::MakeOperation(computeType, scaleType));
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmulDesc,
                                        cublasComputeType_t computeType, cudaDataType_t scaleType) {
  return rt::Create(matmulDesc, rt::MakeOperation(computeType, scaleType));
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc) {
  return rt::Destroy(matmulDesc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, const void* buf,
                                              size_t sizeInBytes) {
  return rt::Set<rt::Operation>(matmulDesc, attr, buf, sizeInBytes);
}
cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, void* buf,
                                              size_t sizeInBytes, size_t* sizeWritten) {
  return rt::Get<rt::Operation>(matmulDesc, attr, buf, sizeInBytes, sizeWritten);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t pref, size_t size) {
  return rt::Init(pref, size, rt::Preference());
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* pref) {
  return rt::Create(pref, rt::Preference());
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
  return rt::Destroy(pref);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void* buf, size_t sizeInBytes) {
  return rt::Set<rt::Preference>(pref, attr, buf, sizeInBytes);
}
cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    void* buf, size_t sizeInBytes,
                                                    size_t* sizeWritten) {
  return rt::Get<rt::Preference>(pref, attr, buf, sizeInBytes, sizeWritten);
}
