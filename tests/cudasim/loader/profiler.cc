// What a profiler loads into programs, with NVIDIA's headers: it counts the ranges that are open.
#include <nvtx3/nvToolsExt.h>

namespace {
int level = 0;
int Push(const char*) { return level++; }
int Pop() { return --level; }
}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  const auto* const version =
      static_cast<const NvtxExportTableVersionInfo*>(get(NVTX_ETID_VERSIONINFO));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || version == nullptr || version->version != NVTX_VERSION) return 0;
  const unsigned sizes[] = {0,
                            NVTX_CBID_CORE_SIZE,
                            NVTX_CBID_CUDA_SIZE,
                            NVTX_CBID_OPENCL_SIZE,
                            NVTX_CBID_CUDART_SIZE,
                            NVTX_CBID_CORE2_SIZE,
                            NVTX_CBID_SYNC_SIZE};
  for (int module = NVTX_CB_MODULE_SYNC; module >= NVTX_CB_MODULE_CORE; --module) {
    const auto id = static_cast<NvtxCallbackModule>(module);
    if (callbacks->GetModuleFunctionTable(id, &table, &size) == 0 || size != sizes[module])
      return 0;
    if (table[0] != nullptr || table[size - 1] == nullptr || table[size] != nullptr) return 0;
  }
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(Push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(Pop);
  return 1;
}
