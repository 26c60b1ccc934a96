// A program with kernels that chooses a CUDA runtime when it runs: the simulator that its argument
// names, or NVIDIA's. loader_test.sh compiles it by nvcc.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstdio>
#include <string>

#include "tools/cudasim/loader/loader.h"

extern "C" int nvtxRangePushA(const char* message);
extern "C" int nvtxRangePop();

namespace {

__constant__ int factors[4] = {1, 2, 3, 4};

__global__ void Scale(int* values, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) values[i] = i * factors[i % 4];
}

// Empty, or CUDA's error.
std::string SumOnDevice(long long* sum) {
  constexpr int kValues = 1000;
  const auto text = [](cudaError_t code) { return std::string(cudaGetErrorString(code)); };
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) return text(code);
  int* values = nullptr;
  if (const cudaError_t code = cudaMalloc(&values, kValues * sizeof(int)); code != cudaSuccess) {
    return text(code);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = 8;
  config.blockDim = 128;
  if (const cudaError_t code = cudaLaunchKernelEx(&config, Scale, values, kValues);
      code != cudaSuccess) {
    return text(code);
  }
  static int copy[kValues];
  cudaMemcpyAsync(copy, values, sizeof(copy), cudaMemcpyDeviceToHost, nullptr);
  if (const cudaError_t code = cudaDeviceSynchronize(); code != cudaSuccess) return text(code);
  for (const int value : copy) *sum += value;
  cudaFree(values);
  return "";
}

void Tell(const char* when) {
  long long sum = 0;
  const std::string error = SumOnDevice(&sum);
  if (error.empty()) {
    std::printf("%s: %lld\n", when, sum);
  } else {
    std::printf("%s: %s\n", when, error.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Tell("before");
  std::printf("ranges: %d", nvtxRangePushA("outer"));
  std::printf(" %d", nvtxRangePushA("inner"));
  std::printf(" %d", nvtxRangePop());
  std::printf(" %d\n", nvtxRangePop());
  if (argc < 2) {
    const std::string why_not = cudasim::ConnectNvidiaRuntime();
    if (!why_not.empty()) std::printf("%s\n", why_not.c_str());
  } else if (void* const library = dlopen(argv[1], RTLD_NOW); library == nullptr) {
    std::printf("%s\n", dlerror());
  } else if (const char* missing = cudasim::Connect(library)) {
    std::printf("%s is missing\n", missing);
  }
  Tell("after");
}
