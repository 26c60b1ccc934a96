// The functions that objects made by nvcc call: registration of device code, launches, and
// variables. With them and the rest of the runtime, such objects run unchanged.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "cudasim/access.h"
#include "cudasim/executor.h"
#include "cudasim/launch.h"
#include "cudasim/runtime_api.h"
#include "tools/cudasim/counters.h"
#include "tools/cudasim/ptx/block.h"
#include "tools/cudasim/ptx/detectors/counters.h"
#include "tools/cudasim/ptx/host/registry.h"
#include "tools/cudasim/ptx/launch.h"
#include "tools/cudasim/runtime/capture.h"
#include "tools/cudasim/runtime/state.h"

namespace cudasim {
namespace ptx {
namespace {

// What __cudaRegisterFatBinary gets.
struct FatbinWrapper {
  int magic, version;
  const void* data;
  void* unused;
};

// Of a <<<>>> launch, between its two halves.
struct Configuration {
  dim3 grid, block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local Configuration configuration;

Counters& AllCounters() {
  static auto* const counters = new Counters;
  return *counters;
}

// CUDASIM_COUNTERS=1: at the program's end, what nobody has taken.
bool CountsFromTheStart() {
  if (!IsSet("CUDASIM_COUNTERS")) return false;
  std::atexit([] {
    const CountsByKernel counts = AllCounters().Take();
    if (counts.empty()) return;
    std::fprintf(stderr, "%s%s%s", FormatCounts("", {}).c_str(), FormatCounts("", counts).c_str(),
                 FormatExcess(counts, 1.2).c_str());
  });
  return true;
}
std::atomic<bool> counting{CountsFromTheStart()};

void LeaveKernel(uintptr_t address, Bug bug, std::string&& text) {
  if (Block* const block = Block::Running(); block != nullptr) {
    block->Leave(address, bug, std::move(text));
  }
}

Settings SettingsFor(int device) {
  const ExecutorSettings& executor = GetExecutorSettings();
  Settings settings;
  settings.threads = executor.threads;
  settings.seed = executor.seed;
  settings.order = executor.order == Order::kForward   ? Settings::Order::kForward
                   : executor.order == Order::kReverse ? Settings::Order::kReverse
                                                       : Settings::Order::kRandom;
  settings.report_exited = executor.report_exited;
  settings.find_races = executor.find_races;
  settings.counters = counting.load(std::memory_order_relaxed) ? &AllCounters() : nullptr;
  settings.accessible = &AccessibleAt;
  settings.describe = &DescribeAddress;
  settings.changes = &runtime::MemoryChanges();
  settings.around = [device](const std::function<void()>& run_blocks) {
    const DeviceAccess access(device);
    runtime::GetThread().leave_kernel = &LeaveKernel;
    run_blocks();
    runtime::GetThread().leave_kernel = nullptr;
  };
  return settings;
}

cudaError_t RunOn(int device, const Launch& launch) {
  try {
    if (launch.program->approximates) runtime::Approximated() = true;
    Run(launch, SettingsFor(device));
    return cudaSuccess;
  } catch (const Fault& fault) {
    Report(fault.bug, fault.what());
    return fault.bug == Bug::kAssert ? cudaErrorAssert : cudaErrorLaunchFailure;
  }
}

// What is not implemented is reported as a bug: a kernel that does not run must not go unnoticed.
template <typename F>
cudaError_t ReportUnsupported(F f) {
  try {
    return f();
  } catch (const Unsupported& error) {
    Report(Bug::kOther, error.what());
    return runtime::Return(cudaErrorInvalidDeviceFunction);
  }
}

cudaError_t LaunchStub(const void* stub, const cudaLaunchConfig_t& config, void** arguments) {
  return ReportUnsupported([&] {
    const Program* const kernel = Registry::Get().FindKernel(stub, runtime::GetThread().device);
    if (kernel == nullptr) return runtime::Return(cudaErrorInvalidDeviceFunction);
    Launch launch;
    launch.program = kernel;
    launch.grid = {config.gridDim.x, config.gridDim.y, config.gridDim.z};
    launch.block = {config.blockDim.x, config.blockDim.y, config.blockDim.z};
    launch.dynamic_shared = config.dynamicSmemBytes;
    launch.parameters = PackParameters(*kernel, arguments);
    for (unsigned j = 0; j < config.numAttrs; ++j) {
      if (config.attrs[j].id == cudaLaunchAttributeCooperative) {
        launch.cooperative = config.attrs[j].val.cooperative != 0;
      }
    }
    cudasim::Launch work;
    work.name = kernel->name;
    work.function = stub;
    work.grid = config.gridDim;
    work.block = config.blockDim;
    work.shared_bytes = config.dynamicSmemBytes;
    work.cooperative = launch.cooperative;
    work.pointers.reserve(kernel->pointers.size());
    for (const PointerParameter& pointer : kernel->pointers) {
      const void* address;
      std::memcpy(&address, launch.parameters.data() + pointer.offset, sizeof(address));
      work.pointers.push_back({address, pointer.written});
    }
    work.run = [launch = std::move(launch)](int device) { return RunOn(device, launch); };
    return Enqueue(config.stream, std::move(work));
  });
}

// The launch of a graph's node.
runtime::Enqueuing Kernel(const cudaKernelNodeParams* params) {
  return [params](cudaStream_t stream) {
    if (params == nullptr || params->extra != nullptr) return cudaErrorInvalidValue;
    const cudaLaunchConfig_t config{params->gridDim, params->blockDim, params->sharedMemBytes,
                                    stream};
    return LaunchStub(params->func, config, params->kernelParams);
  };
}

cudaError_t FindSymbol(const void* symbol, Image::Memory* memory) {
  return ReportUnsupported([&] {
    *memory = Registry::Get().FindVariable(symbol, runtime::GetThread().device);
    return memory->data != nullptr ? cudaSuccess : runtime::Return(cudaErrorInvalidSymbol);
  });
}

// Copies to (or from) `bytes` bytes of a variable from `offset` on.
template <typename Copy>
cudaError_t CopySymbol(const void* symbol, size_t bytes, size_t offset, Copy copy) {
  Image::Memory memory;
  if (const cudaError_t error = FindSymbol(symbol, &memory); error != cudaSuccess) return error;
  if (offset > memory.bytes || bytes > memory.bytes - offset) {
    return runtime::Return(cudaErrorInvalidValue);
  }
  return copy(memory.data + offset);
}

}  // namespace
}  // namespace ptx
}  // namespace cudasim

namespace cudasim {

void CountKernels(bool count) { ptx::counting = count; }
CountsByKernel TakeCounts() { return ptx::AllCounters().Take(); }
bool TakeApproximated() { return runtime::Approximated().exchange(false); }

}  // namespace cudasim

using cudasim::ptx::Binary;
using cudasim::ptx::CopySymbol;
using cudasim::ptx::Registry;
using cudasim::runtime::AddNode;
using cudasim::runtime::Return;
using cudasim::runtime::SetNode;

// NVIDIA's names and parameters, of which not all are needed. NOLINTBEGIN
extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  const auto* const fatbin = static_cast<const cudasim::ptx::FatbinWrapper*>(wrapper);
  return reinterpret_cast<void**>(Registry::Get().AddBinary(fatbin->data));
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) {
  Registry::Get().RemoveBinary(reinterpret_cast<Binary*>(handle));
}
void __cudaRegisterFunction(void** handle, const char* stub, char*, const char* name, int, void*,
                            void*, void*, void*, int*) {
  Registry::Get().AddKernel(stub, reinterpret_cast<Binary*>(handle), name);
}
void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t, int, int) {
  Registry::Get().AddVariable(host, reinterpret_cast<Binary*>(handle), name);
}
// A managed variable's address, which the host reads from a pointer, is the first device's.
void __cudaRegisterManagedVar(void** handle, void** host, char*, const char* name, int, size_t, int,
                              int) {
  Registry::Get().AddVariable(host, reinterpret_cast<Binary*>(handle), name);
}
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     cudaStream_t stream) {
  cudasim::ptx::configuration = {grid, block, shared_bytes, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  const cudasim::ptx::Configuration& from = cudasim::ptx::configuration;
  *grid = from.grid;
  *block = from.block;
  *shared_bytes = from.shared_bytes;
  std::memcpy(stream, &from.stream, sizeof(from.stream));
  return cudaSuccess;
}
// A kernel's handle is its stub.
cudaError_t __cudaGetKernel(const void** kernel, const void* stub) {
  *kernel = stub;
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  const cudaLaunchConfig_t config{grid, block, shared_bytes, stream};
  return cudasim::ptx::LaunchStub(stub, config, arguments);
}
cudaError_t __cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub,
                                void** arguments) {
  return cudasim::ptx::LaunchStub(stub, *config, arguments);
}
cudaError_t cudaLaunchCooperativeKernel(const void* stub, dim3 grid, dim3 block, void** arguments,
                                        size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  const cudaLaunchConfig_t config{grid, block, shared_bytes, stream, &attribute, 1};
  return cudasim::ptx::LaunchStub(stub, config, arguments);
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, size_t count,
                                   const cudaKernelNodeParams* params) {
  return Return(AddNode(node, graph, dependencies, count, cudasim::ptx::Kernel(params)));
}
cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* params) {
  return Return(SetNode(node, cudasim::ptx::Kernel(params)));
}
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* params) {
  return Return(SetNode(exec, node, cudasim::ptx::Kernel(params)));
}

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  return CopySymbol(symbol, 0, 0, [&](std::byte* at) {
    *address = at;
    return cudaSuccess;
  });
}
cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  cudasim::ptx::Image::Memory memory;
  const cudaError_t error = cudasim::ptx::FindSymbol(symbol, &memory);
  if (error == cudaSuccess) *bytes = memory.bytes;
  return error;
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  return CopySymbol(symbol, bytes, offset,
                    [&](std::byte* at) { return cudaMemcpy(at, from, bytes, kind); });
}
cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                 cudaMemcpyKind kind) {
  return CopySymbol(symbol, bytes, offset,
                    [&](std::byte* at) { return cudaMemcpy(to, at, bytes, kind); });
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes,
                                    size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  return CopySymbol(symbol, bytes, offset,
                    [&](std::byte* at) { return cudaMemcpyAsync(at, from, bytes, kind, stream); });
}
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  return CopySymbol(symbol, bytes, offset,
                    [&](std::byte* at) { return cudaMemcpyAsync(to, at, bytes, kind, stream); });
}

}  // extern "C"
// NOLINTEND
