#include "core/cuda/blaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/cuda/backend.h"
#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "core/error.h"
#include "core/kernel_choices.h"
#include "core/tensor.h"

namespace lockstep::cuda {
namespace {

using Epilogue = BlasLtMatmul::Epilogue;

// Bytes; NVIDIA's advice for Hopper. A workspace is a tensor, allocated for the stream like any
// other, so that two streams never share one.
constexpr int64_t kBlasLtWorkspace = 32 << 20;

std::atomic<bool> allow_tf32 = false;

// The device's handle, created on first use and never destroyed. Any thread may use it.
cublasLtHandle_t BlasLtHandle(Device device) {
  struct Handles {
    std::mutex mutex;
    std::vector<cublasLtHandle_t> of_device;
  };
  static Handles& handles = *new Handles;
  const std::lock_guard lock(handles.mutex);
  const auto index = static_cast<size_t>(device.index);
  if (handles.of_device.size() <= index) handles.of_device.resize(index + 1);
  cublasLtHandle_t& handle = handles.of_device[index];
  if (handle == nullptr) {
    SetDevice(device);
    RequireCublasLt();
    const cublasStatus_t status = cublasLtCreate(&handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw Error(StrCat("cuBLASLt could not be initialised on ", device, ": ",
                         cublasLtGetStatusString(status)));
    }
  }
  return handle;
}

void Check(cublasStatus_t status, const char* call, const BlasLtMatmul& p) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(StrCat(call, " of a product [", p.m, ", ", p.k, "] x [", p.k, ", ", p.n, "] of ",
                     p.dtype, ": ", cublasLtGetStatusString(status)));
}

// ---- Owners of cuBLASLt's descriptors. ----

template <class T, cublasStatus_t (*destroy)(T)>
struct Deleter {
  using pointer = T;
  void operator()(T object) const { destroy(object); }
};
using MatmulDesc = std::unique_ptr<void, Deleter<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<void, Deleter<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<void, Deleter<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// The largest power of two that divides the address, up to what cuBLASLt assumes by default.
uint32_t AlignmentOf(const void* p) {
  constexpr uintptr_t kMost = 256;
  const auto address = reinterpret_cast<uintptr_t>(p) | kMost;
  return static_cast<uint32_t>(address & (~address + 1));
}

// An address of exactly that alignment, which is never read.
template <class T>
T* LikeAligned(T* p) {
  if (p == nullptr) return p;
  return reinterpret_cast<T*>((uintptr_t{1} << 32) | AlignmentOf(p));
}

template <class V>
void Set(const MatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute, const V& value,
         const BlasLtMatmul& p) {
  Check(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute", p);
}

// What cuBLASLt calls an epilogue, and what we call it in a problem's text.
struct EpilogueNames {
  cublasLtEpilogue_t id;
  const char* text;
};
constexpr EpilogueNames kEpilogues[] = {{CUBLASLT_EPILOGUE_DEFAULT, ""},
                                        {CUBLASLT_EPILOGUE_BIAS, ", bias"},
                                        {CUBLASLT_EPILOGUE_GELU, ", gelu"},
                                        {CUBLASLT_EPILOGUE_GELU_BIAS, ", bias, gelu"},
                                        {CUBLASLT_EPILOGUE_GELU_AUX, ", gelu, aux"},
                                        {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, ", bias, gelu, aux"},
                                        {CUBLASLT_EPILOGUE_DGELU, ", dgelu"}};
static_assert(std::size(kEpilogues) == static_cast<size_t>(Epilogue::kDGelu) + 1 &&
              std::end(kEpilogues)[-1].id == CUBLASLT_EPILOGUE_DGELU);
const EpilogueNames& NamesOf(Epilogue epilogue) { return kEpilogues[static_cast<int>(epilogue)]; }

// The addresses that change from call to call.
void SetPointers(const MatmulDesc& desc, const BlasLtMatmul& p) {
  if (p.bias != nullptr) Set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias, p);
  if (p.aux != nullptr) Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux, p);
}

MatmulDesc MakeDesc(const BlasLtMatmul& p) {
  cublasLtMatmulDesc_t raw = nullptr;
  const bool tf32 = allow_tf32 && !p.full_f32 && p.dtype == DType::kF32;
  Check(cublasLtMatmulDescCreate(&raw, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                 CUDA_R_32F),
        "cublasLtMatmulDescCreate", p);
  MatmulDesc desc(raw);
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  Set(desc, CUBLASLT_MATMUL_DESC_TRANSA, operation(p.transpose_a), p);
  Set(desc, CUBLASLT_MATMUL_DESC_TRANSB, operation(p.transpose_b), p);
  Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, NamesOf(p.epilogue).id, p);
  if (p.bias != nullptr) Set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, TypeOf(p.d_dtype), p);
  if (p.aux != nullptr) {
    Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ldd, p);
    Set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, TypeOf(p.d_dtype), p);
  }
  SetPointers(desc, p);
  return desc;
}

Layout MakeLayout(DType dtype, int64_t rows, int64_t columns, int64_t ld, int64_t stride,
                  const BlasLtMatmul& p) {
  cublasLtMatrixLayout_t raw = nullptr;
  Check(cublasLtMatrixLayoutCreate(&raw, TypeOf(dtype), static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(columns), ld),
        "cublasLtMatrixLayoutCreate", p);
  Layout layout(raw);
  if (p.batch == 1) return layout;
  const auto count = static_cast<int32_t>(p.batch);
  Check(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                         sizeof(count)),
        "cublasLtMatrixLayoutSetAttribute", p);
  Check(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                         sizeof(stride)),
        "cublasLtMatrixLayoutSetAttribute", p);
  return layout;
}

Preference MakePreference(const BlasLtMatmul& p) {
  cublasLtMatmulPreference_t raw = nullptr;
  Check(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate", p);
  Preference preference(raw);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    Check(cublasLtMatmulPreferenceSetAttribute(raw, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute", p);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kBlasLtWorkspace));
  // Sums over parts of k are added in f32 and in order, or not split at all.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE |
                            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(p.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(p.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(p.d));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(p.d));
  return preference;
}

// What a key determines.
struct Plan {
  MatmulDesc desc;
  Layout a, b, d;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;
  float waves = 0;
  bool possible = false;
};

// The algorithm by cuBLASLt's numbers for it, which determine its bits: "algo 66, tile 20, split_k
// 1, ...".
std::string Describe(const cublasLtMatmulAlgo_t& algorithm, size_t workspace, float waves) {
  struct Attribute {
    const char* name;
    cublasLtMatmulAlgoConfigAttributes_t id;
    size_t size;
  };
  constexpr Attribute kAttributes[] = {{"algo", CUBLASLT_ALGO_CONFIG_ID, 4},
                                       {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
                                       {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
                                       {"split_k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
                                       {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
                                       {"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
                                       {"custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
                                       {"inner_shape", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
                                       {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2}};
  std::string text = StrCat("cuBLASLt ", cublasLtGetVersion());
  for (const Attribute& attribute : kAttributes) {
    uint32_t value = 0;
    size_t written = 0;
    // Not every algorithm has every attribute.
    if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute.id, &value, attribute.size,
                                             &written) == CUBLAS_STATUS_SUCCESS) {
      text += StrCat(", ", attribute.name, " ", value);
    }
  }
  return StrCat(text, ", workspace ", workspace, ", waves ", waves);
}

// The product as callers see it, with row-major matrices.
std::string Describe(const BlasLtMatmul& p) {
  return StrCat(p.batch == 1 ? std::string() : StrCat(p.batch, " of "), p.dtype, "[", p.n, ", ",
                p.k, "] x [", p.k, ", ", p.m, "] ", p.transpose_b ? "T" : "N",
                p.transpose_a ? "T" : "N", ", ld ", p.ldb, " ", p.lda, " ", p.ldd, " -> ",
                p.d_dtype, p.accumulate ? ", added" : "", NamesOf(p.epilogue).text);
}

Plan MakePlan(cublasLtHandle_t handle, const BlasLtMatmul& p) {
  Plan plan;
  // The heuristic sees of addresses what the plan's key has of them.
  BlasLtMatmul as_in_key = p;
  as_in_key.bias = LikeAligned(p.bias);
  as_in_key.aux = LikeAligned(p.aux);
  plan.desc = MakeDesc(as_in_key);
  plan.a = MakeLayout(p.dtype, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda,
                      p.stride_a, p);
  plan.b = MakeLayout(p.dtype, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb,
                      p.stride_b, p);
  plan.d = MakeLayout(p.d_dtype, p.m, p.n, p.ldd, p.stride_d, p);
  const Preference preference = MakePreference(p);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, plan.desc.get(), plan.a.get(), plan.b.get(), plan.d.get(), plan.d.get(),
      preference.get(), 1, &result, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return plan;
  Check(status, "cublasLtMatmulAlgoGetHeuristic", p);
  if (found == 0 || result.state != CUBLAS_STATUS_SUCCESS) return plan;
  plan.algorithm = result.algo;
  plan.workspace = result.workspaceSize;
  plan.waves = result.wavesCount;
  plan.possible = true;
  return plan;
}

// What a plan depends on; of the addresses, only their presence and alignment.
using Key = std::array<int64_t, 22>;

Key KeyOf(const BlasLtMatmul& p) {
  const auto address = [](const void* x) { return x == nullptr ? 0 : int64_t{AlignmentOf(x)}; };
  return {allow_tf32 && !p.full_f32,
          p.transpose_a,
          p.transpose_b,
          p.m,
          p.n,
          p.k,
          static_cast<int64_t>(p.dtype),
          static_cast<int64_t>(p.d_dtype),
          address(p.a),
          address(p.b),
          address(p.d),
          p.lda,
          p.ldb,
          p.ldd,
          p.batch,
          p.stride_a,
          p.stride_b,
          p.stride_d,
          p.accumulate,
          static_cast<int64_t>(p.epilogue),
          address(p.bias),
          address(p.aux)};
}

// A device's plans: the least recently used makes room. A plan's descriptor holds the addresses of
// the current call, so the lock is held until the product is submitted.
struct Plans {
  struct Used {
    Plan plan;
    uint64_t last_use = 0;
  };
  std::mutex mutex;
  std::map<Key, Used> map;
  uint64_t uses = 0;

  // The plan for the key, if there is one.
  Plan* Find(const Key& key) {
    const auto at = map.find(key);
    if (at == map.end()) return nullptr;
    at->second.last_use = ++uses;
    return &at->second.plan;
  }
  Plan* Add(const Key& key, Plan plan) {
    if (map.size() == kMostBlasLtPlans) {
      map.erase(std::ranges::min_element(map, {},
                                         [](const auto& entry) { return entry.second.last_use; }));
    }
    return &map.emplace(key, Used{std::move(plan), ++uses}).first->second.plan;
  }
};

Plans& PlansOf(Device device) {
  constexpr int kMostDevices = 64;
  static Plans* const plans = new Plans[kMostDevices];  // live as long as CUDA does
  LS_INVARIANT(device.index < kMostDevices, device);
  return plans[device.index];
}

}  // namespace

void AllowTf32(bool allow) { allow_tf32 = allow; }
bool Tf32Allowed() { return allow_tf32; }

size_t NumBlasLtPlans(Device device) {
  Plans& plans = PlansOf(device);
  const std::scoped_lock lock(plans.mutex);
  return plans.map.size();
}

bool RunBlasLt(Stream stream, const BlasLtMatmul& args) {
  SetDevice(stream.device);
  const cublasLtHandle_t handle = BlasLtHandle(stream.device);
  Plans& plans = PlansOf(stream.device);
  const std::scoped_lock lock(plans.mutex);
  const Key key = KeyOf(args);
  const Plan* found = plans.Find(key);
  if (found == nullptr) {
    found = plans.Add(key, MakePlan(handle, args));
    if (found->possible) {
      std::vector<int64_t> of_device(key.begin(), key.end());
      of_device.push_back(stream.device.index);
      NoteKernelChoice("matmul", of_device,
                       {.problem = Describe(args),
                        .kernel = Describe(found->algorithm, found->workspace, found->waves)});
    }
  }
  const Plan& plan = *found;
  if (!plan.possible) return false;
  SetPointers(plan.desc, args);
  const StreamGuard guard(stream);  // the workspace belongs to this stream
  const Tensor workspace =
      Tensor::Empty({static_cast<int64_t>(plan.workspace)}, DType::kU8, stream.device);
  const float alpha = 1, beta = args.accumulate ? 1 : 0;
  Check(cublasLtMatmul(handle, plan.desc.get(), &alpha, args.a, plan.a.get(), args.b, plan.b.get(),
                       &beta, args.d, plan.d.get(), args.d, plan.d.get(), &plan.algorithm,
                       workspace.raw_data(), plan.workspace,
                       static_cast<cudaStream_t>(stream.handle.get())),
        "cublasLtMatmul", args);
  return true;
}

}  // namespace lockstep::cuda
