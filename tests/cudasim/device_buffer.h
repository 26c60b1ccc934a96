// Device memory, launches and orders of execution, for the simulator's tests.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cudasim/executor.h"

namespace lockstep {

// Device memory with the values of a vector.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t n) : n_(n) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, n * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(p);
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), n_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() const { return data_; }
  std::vector<T> Read() const {
    std::vector<T> values(n_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  size_t n_;
  T* data_ = nullptr;
};

// Runs a kernel and waits; returns its error.
template <class... Params, class... Args>
cudaError_t RunKernel(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                      Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  if (launched != cudaSuccess) return launched;
  return cudaDeviceSynchronize();
}

// Restores the executor's settings when it is destroyed.
class ScopedSettings {
 public:
  ScopedSettings() : saved_(cudasim::GetExecutorSettings()) {}
  ~ScopedSettings() { cudasim::GetExecutorSettings() = saved_; }
  ScopedSettings(const ScopedSettings&) = delete;
  ScopedSettings& operator=(const ScopedSettings&) = delete;
  cudasim::ExecutorSettings* operator->() { return &cudasim::GetExecutorSettings(); }

 private:
  cudasim::ExecutorSettings saved_;
};

// The bytes that run() returns must be the same in every order of threads and blocks and on any
// number of OS threads; returns the bytes of the forward order.
template <class Run>
auto InAllOrders(const Run& run) {
  ScopedSettings settings;
  settings->order = cudasim::Order::kForward;
  settings->threads = 1;
  const auto expected = run();
  auto compare = [&](const std::string& what) {
    const auto got = run();
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::memcmp(&got[i], &expected[i], sizeof(got[i])), 0)
          << what << " differs at " << i << ": " << got[i] << ", forward order: " << expected[i];
    }
  };
  settings->threads = 3;
  compare("on three OS threads, the result");
  settings->order = cudasim::Order::kReverse;
  compare("in reverse order, the result");
  settings->order = cudasim::Order::kRandom;
  for (uint64_t seed : {1, 2, 3}) {
    settings->seed = seed;
    compare("in random order " + std::to_string(seed) + ", the result");
  }
  return expected;
}

// Deterministic numbers in [-1, 1).
inline std::vector<float> Numbers(size_t n, uint32_t seed) {
  std::vector<float> values(n);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23)) * 0x1p-23f;
  }
  return values;
}

}  // namespace lockstep
