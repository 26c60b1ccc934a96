#include "tools/cudasim/loader/loader.h"

#include <dlfcn.h>

#include <span>
#include <vector>

#include "cudasim/executor.h"
#include "tools/cudasim/loader/kernels.h"
#include "tools/cudasim/loader/nvtx.h"

// The functions that programs call outside of kernels, Lockstep and others, by the library that has
// them in NVIDIA's hands: those that return a text, and those that return a status. The linker
// names any that are missing here.
// clang-format off
#define CUDASIM_RUNTIME_TEXTS(X) \
  X(cudaGetErrorName)            \
  X(cudaGetErrorString)

#define CUDASIM_RUNTIME_CALLS(X)                   \
  X(cudaDeviceCanAccessPeer)                       \
  X(cudaDeviceEnablePeerAccess)                    \
  X(cudaDeviceGetAttribute)                        \
  X(cudaDeviceGetPCIBusId)                         \
  X(cudaDeviceReset)                               \
  X(cudaDeviceSynchronize)                         \
  X(cudaDriverGetVersion)                          \
  X(cudaEventCreate)                               \
  X(cudaEventCreateWithFlags)                      \
  X(cudaEventDestroy)                              \
  X(cudaEventElapsedTime)                          \
  X(cudaEventQuery)                                \
  X(cudaEventRecord)                               \
  X(cudaEventSynchronize)                          \
  X(cudaFree)                                      \
  X(cudaFreeAsync)                                 \
  X(cudaFreeHost)                                  \
  X(cudaFuncGetAttributes)                         \
  X(cudaFuncSetAttribute)                          \
  X(cudaGetDevice)                                 \
  X(cudaGetDeviceCount)                            \
  X(cudaGetDeviceProperties)                       \
  X(cudaGetLastError)                              \
  X(cudaGetSymbolAddress)                          \
  X(cudaGraphDestroy)                              \
  X(cudaGraphExecDestroy)                          \
  X(cudaGraphInstantiate)                          \
  X(cudaGraphLaunch)                               \
  X(cudaHostAlloc)                                 \
  X(cudaHostRegister)                              \
  X(cudaHostUnregister)                            \
  X(cudaMalloc)                                    \
  X(cudaMallocAsync)                               \
  X(cudaMallocHost)                                \
  X(cudaMallocManaged)                             \
  X(cudaMemcpy)                                    \
  X(cudaMemcpy2D)                                  \
  X(cudaMemcpyAsync)                               \
  X(cudaMemcpyFromSymbol)                          \
  X(cudaMemcpyFromSymbolAsync)                     \
  X(cudaMemcpyPeer)                                \
  X(cudaMemcpyPeerAsync)                           \
  X(cudaMemcpyToSymbol)                            \
  X(cudaMemcpyToSymbolAsync)                       \
  X(cudaMemGetInfo)                                \
  X(cudaMemset)                                    \
  X(cudaMemsetAsync)                               \
  X(cudaOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cudaPeekAtLastError)                           \
  X(cudaPointerGetAttributes)                      \
  X(cudaRuntimeGetVersion)                         \
  X(cudaSetDevice)                                 \
  X(cudaStreamBeginCapture)                        \
  X(cudaStreamCreate)                              \
  X(cudaStreamCreateWithFlags)                     \
  X(cudaStreamDestroy)                             \
  X(cudaStreamEndCapture)                          \
  X(cudaStreamIsCapturing)                         \
  X(cudaStreamQuery)                               \
  X(cudaStreamSynchronize)                         \
  X(cudaStreamWaitEvent)

// What objects of nvcc's call besides.
#define CUDASIM_LAUNCHES(X)      \
  X(__cudaGetKernel)             \
  X(__cudaLaunchKernel)          \
  X(__cudaPopCallConfiguration)  \
  X(__cudaPushCallConfiguration) \
  X(cudaLaunchCooperativeKernel)   \
  X(cudaLaunchKernel)              \
  X(cudaLaunchKernelExC)

#define CUDASIM_CUBLASLT_CALLS(X)         \
  X(cublasLtCreate)                       \
  X(cublasLtGetVersion)                   \
  X(cublasLtMatmul)                       \
  X(cublasLtMatmulAlgoConfigGetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic)       \
  X(cublasLtMatmulDescCreate)             \
  X(cublasLtMatmulDescDestroy)            \
  X(cublasLtMatmulDescSetAttribute)       \
  X(cublasLtMatmulPreferenceCreate)       \
  X(cublasLtMatmulPreferenceDestroy)      \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatrixLayoutCreate)           \
  X(cublasLtMatrixLayoutDestroy)          \
  X(cublasLtMatrixLayoutSetAttribute)

#define CUDASIM_NCCL_CALLS(X) \
  X(ncclAllGather)            \
  X(ncclAllReduce)            \
  X(ncclBroadcast)            \
  X(ncclCommAbort)            \
  X(ncclCommDestroy)          \
  X(ncclCommFinalize)         \
  X(ncclCommGetAsyncError)    \
  X(ncclCommInitRankConfig)   \
  X(ncclCommSplit)            \
  X(ncclGetUniqueId)          \
  X(ncclGetVersion)           \
  X(ncclGroupEnd)             \
  X(ncclGroupStart)           \
  X(ncclRecv)                 \
  X(ncclReduceScatter)        \
  X(ncclSend)
// clang-format on

namespace cudasim {

namespace {

// cudaErrorInsufficientDriver, which is an error of cuBLASLt and NCCL, too.
int NoDriver() { return 35; }
const char* NoDriverText() { return "no CUDA runtime is loaded"; }

}  // namespace
}  // namespace cudasim

// Each function jumps to its pointer's target, with the caller's arguments unchanged. Weak, so that
// a program may link the simulator itself. The library's calls of its own functions do not end up
// here, since it is linked with -Bsymbolic-functions.
#if !defined(__x86_64__)
#error "loading the simulator is implemented for x86-64; link it instead"
#endif
#define CUDASIM_JUMP(name, initially)                                                  \
  extern "C" {                                                                         \
  [[gnu::visibility("hidden"), gnu::used]] constinit auto* cudasim_address_of_##name = \
      &cudasim::initially;                                                             \
  }                                                                                    \
  asm(".pushsection .text\n.weak " #name "\n.type " #name ", @function\n" #name        \
      ":\n"                                                                            \
      "  jmp *cudasim_address_of_" #name "(%rip)\n.size " #name ", .-" #name "\n.popsection\n");
#define CUDASIM_JUMP_FOR_TEXT(name) CUDASIM_JUMP(name, NoDriverText)
#define CUDASIM_JUMP_FOR_CALL(name) CUDASIM_JUMP(name, NoDriver)
CUDASIM_RUNTIME_TEXTS(CUDASIM_JUMP_FOR_TEXT)
CUDASIM_RUNTIME_CALLS(CUDASIM_JUMP_FOR_CALL)
CUDASIM_LAUNCHES(CUDASIM_JUMP_FOR_CALL)
CUDASIM_JUMP_FOR_TEXT(cublasLtGetStatusString)
CUDASIM_CUBLASLT_CALLS(CUDASIM_JUMP_FOR_CALL)
CUDASIM_JUMP_FOR_TEXT(ncclGetErrorString)
CUDASIM_JUMP_FOR_TEXT(ncclGetLastError)
CUDASIM_NCCL_CALLS(CUDASIM_JUMP_FOR_CALL)
CUDASIM_JUMP(nvtxRangePushA, PushNvtxRange)
CUDASIM_JUMP(nvtxRangePop, PopNvtxRange)

namespace cudasim {
namespace {

struct Function {
  const char* name;
  void** address;
};

#define CUDASIM_FUNCTION(name) {#name, reinterpret_cast<void**>(&cudasim_address_of_##name)},
const Function kRuntime[] = {CUDASIM_RUNTIME_TEXTS(CUDASIM_FUNCTION)
                                 CUDASIM_RUNTIME_CALLS(CUDASIM_FUNCTION)};
const Function kLaunches[] = {CUDASIM_LAUNCHES(CUDASIM_FUNCTION)};
const Function kCublasLt[] = {CUDASIM_FUNCTION(cublasLtGetStatusString)
                                  CUDASIM_CUBLASLT_CALLS(CUDASIM_FUNCTION)};
const Function kOnlySimulators[] = {CUDASIM_FUNCTION(ncclGetErrorString) CUDASIM_FUNCTION(
    ncclGetLastError) CUDASIM_NCCL_CALLS(CUDASIM_FUNCTION) CUDASIM_FUNCTION(nvtxRangePushA)
                                        CUDASIM_FUNCTION(nvtxRangePop)};

bool simulated = false;

// All of the functions or none, and only with the program's kernels, if they are to be announced to
// it. Returns the name of one that the library lacks.
const char* Point(std::initializer_list<std::span<const Function>> lists, void* library,
                  bool announces) {
  std::vector<void*> found;
  for (const std::span<const Function> list : lists) {
    for (const Function& function : list) {
      found.push_back(dlsym(library, function.name));
      if (found.back() == nullptr) return function.name;
    }
  }
  if (announces) {
    if (const char* missing = AnnounceKernels(library)) return missing;
  }
  auto next = found.begin();
  for (const std::span<const Function> list : lists) {
    for (const Function& function : list) *function.address = *next++;
  }
  return nullptr;
}

std::string ConnectNvidia(const char* file, std::initializer_list<std::span<const Function>> lists,
                          bool announces) {
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  const char* const missing = Point(lists, library, announces);
  return missing == nullptr ? "" : std::string(file) + " has no " + missing;
}

}  // namespace

bool Connected() { return simulated || &GetExecutorSettings != nullptr; }

const char* Connect(void* library) {
  if (const char* missing =
          Point({kRuntime, kLaunches, kCublasLt, kOnlySimulators}, library, true)) {
    return missing;
  }
  simulated = true;
  return nullptr;
}

std::string ConnectNvidiaRuntime() {
  static bool connected = false;
  if (connected || Connected()) return "";
  std::string why_not = ConnectNvidia("libcudart.so.13", {kRuntime, kLaunches}, true);
  connected = why_not.empty();
  return why_not;
}

std::string ConnectNvidiaCublasLt() {
  static bool connected = false;
  if (connected || Connected()) return "";
  std::string why_not = ConnectNvidia("libcublasLt.so.13", {kCublasLt}, false);
  connected = why_not.empty();
  return why_not;
}

}  // namespace cudasim
