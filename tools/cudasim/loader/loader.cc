#include "tools/cudasim/loader/loader.h"

#include <dlfcn.h>

#include <iterator>

#include "cudasim/executor.h"

// The functions that programs call outside of .cu files: those that return a text, and those that
// return a status. The linker names any that are missing here. clang-format off
#define CUDASIM_TEXTS(X)     \
  X(cublasLtGetStatusString) \
  X(cudaGetErrorName)        \
  X(cudaGetErrorString)      \
  X(ncclGetErrorString)      \
  X(ncclGetLastError)

#define CUDASIM_CALLS(X)                  \
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
  X(cublasLtMatrixLayoutSetAttribute)     \
  X(cudaDeviceCanAccessPeer)              \
  X(cudaDeviceGetPCIBusId)                \
  X(cudaDeviceSynchronize)                \
  X(cudaDriverGetVersion)                 \
  X(cudaEventCreate)                      \
  X(cudaEventCreateWithFlags)             \
  X(cudaEventDestroy)                     \
  X(cudaEventElapsedTime)                 \
  X(cudaEventQuery)                       \
  X(cudaEventRecord)                      \
  X(cudaEventSynchronize)                 \
  X(cudaFree)                             \
  X(cudaFreeAsync)                        \
  X(cudaFuncSetAttribute)                 \
  X(cudaGetDeviceCount)                   \
  X(cudaGetDeviceProperties)              \
  X(cudaGetLastError)                     \
  X(cudaGraphDestroy)                     \
  X(cudaGraphExecDestroy)                 \
  X(cudaGraphInstantiate)                 \
  X(cudaGraphLaunch)                      \
  X(cudaHostAlloc)                        \
  X(cudaMalloc)                           \
  X(cudaMallocAsync)                      \
  X(cudaMemGetInfo)                       \
  X(cudaMemcpyAsync)                      \
  X(cudaMemsetAsync)                      \
  X(cudaRuntimeGetVersion)                \
  X(cudaSetDevice)                        \
  X(cudaStreamBeginCapture)               \
  X(cudaStreamCreateWithFlags)            \
  X(cudaStreamDestroy)                    \
  X(cudaStreamEndCapture)                 \
  X(cudaStreamIsCapturing)                \
  X(cudaStreamSynchronize)                \
  X(cudaStreamWaitEvent)                  \
  X(ncclAllGather)                        \
  X(ncclAllReduce)                        \
  X(ncclBroadcast)                        \
  X(ncclCommAbort)                        \
  X(ncclCommDestroy)                      \
  X(ncclCommFinalize)                     \
  X(ncclCommGetAsyncError)                \
  X(ncclCommInitRankConfig)               \
  X(ncclCommSplit)                        \
  X(ncclGetUniqueId)                      \
  X(ncclGetVersion)                       \
  X(ncclGroupEnd)                         \
  X(ncclGroupStart)                       \
  X(ncclRecv)                             \
  X(ncclReduceScatter)                    \
  X(ncclSend)                             \
  X(nvtxRangePop)                         \
  X(nvtxRangePushA)
// clang-format on

namespace cudasim {

// The simulator's; null if it is not linked.
[[gnu::weak]] ExecutorSettings& GetExecutorSettings();

namespace {

// cudaErrorInsufficientDriver, which is an error of cuBLASLt and NCCL, too.
int NoDriver() { return 35; }
const char* NoDriverText() { return "the simulated GPU is not loaded"; }

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
CUDASIM_TEXTS(CUDASIM_JUMP_FOR_TEXT)
CUDASIM_CALLS(CUDASIM_JUMP_FOR_CALL)

namespace cudasim {
namespace {

struct Function {
  const char* name;
  void** address;
};

#define CUDASIM_FUNCTION(name) {#name, reinterpret_cast<void**>(&cudasim_address_of_##name)},
const Function kFunctions[] = {CUDASIM_TEXTS(CUDASIM_FUNCTION) CUDASIM_CALLS(CUDASIM_FUNCTION)};

bool connected = false;

}  // namespace

bool Connected() { return connected || &GetExecutorSettings != nullptr; }

const char* Connect(void* library) {
  void* found[std::size(kFunctions)];
  for (size_t i = 0; i < std::size(kFunctions); ++i) {
    found[i] = dlsym(library, kFunctions[i].name);
    if (found[i] == nullptr) return kFunctions[i].name;
  }
  for (size_t i = 0; i < std::size(kFunctions); ++i) *kFunctions[i].address = found[i];
  connected = true;
  return nullptr;
}

}  // namespace cudasim
