// A program that knows nothing of the simulator: <<<>>> and cudaLaunchKernelEx, variables of the
// device, recursion, printf, atomics, streams and events. Prints what it computed.
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>
#include <vector>

#define CHECK(call)                                              \
  do {                                                           \
    const cudaError_t error = (call);                            \
    if (error != cudaSuccess) {                                  \
      std::printf("%s: %s\n", #call, cudaGetErrorString(error)); \
      return 1;                                                  \
    }                                                            \
  } while (0)

__constant__ float table[4];
__device__ int launches;

template <typename T>
__global__ void Scale(const T* x, T* y, T factor, int n) {
  extern __shared__ unsigned char bytes[];
  T* const shared = reinterpret_cast<T*>(bytes);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  shared[threadIdx.x] = i < n ? x[i] : T(0);
  __syncthreads();
  // Backwards within each block.
  const T value = shared[blockDim.x - 1 - threadIdx.x];
  if (i < n) y[i] = value * factor + static_cast<T>(table[1]);
  if (i == 0) atomicAdd(&launches, 1);
}

__device__ __noinline__ int Fibonacci(int n) {
  return n < 2 ? n : Fibonacci(n - 1) + Fibonacci(n - 2);
}

__global__ void Numbers(int* out) {
  assert(out != nullptr);
  out[threadIdx.x] = Fibonacci(threadIdx.x);
  if (threadIdx.x == 7) printf("from the device: %d %s %.1f\n", out[threadIdx.x], "and", 2.5);
}

int main() {
  const int n = 1000;
  std::vector<float> x(n), y(n);
  for (int i = 0; i < n; ++i) x[i] = static_cast<float>(i);
  const float values[4] = {0, 0.5f, 0, 0};
  CHECK(cudaMemcpyToSymbol(table, values, sizeof(values)));
  float *dx, *dy;
  int* numbers;
  CHECK(cudaMalloc(&dx, n * sizeof(float)));
  CHECK(cudaMalloc(&dy, n * sizeof(float)));
  CHECK(cudaMalloc(&numbers, 20 * sizeof(int)));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaMemcpyAsync(dx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice, stream));
  Scale<float><<<8, 128, 128 * sizeof(float), stream>>>(dx, dy, 2.0f, n);
  CHECK(cudaGetLastError());
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(8);
  config.blockDim = dim3(128);
  config.dynamicSmemBytes = 128 * sizeof(float);
  config.stream = stream;
  CHECK(cudaLaunchKernelEx(&config, Scale<float>, static_cast<const float*>(dy), dx, 1.0f, n));
  CHECK(cudaMemcpyAsync(y.data(), dx, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += y[i];
  std::printf("y[0] %.1f, y[500] %.1f, sum %.1f\n", y[0], y[500], sum);
  Numbers<<<1, 20>>>(numbers);
  int host[20], count;
  CHECK(cudaMemcpy(host, numbers, sizeof(host), cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpyFromSymbol(&count, launches, sizeof(count)));
  std::printf("%d %d, %d launches\n", host[10], host[19], count);
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(dx));
  CHECK(cudaFree(dy));
  CHECK(cudaFree(numbers));
  return 0;
}
