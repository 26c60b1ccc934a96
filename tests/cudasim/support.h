// Shared by the tests of the simulated runtime.
#ifndef LOCKSTEP_TESTS_CUDASIM_SUPPORT_H_
#define LOCKSTEP_TESTS_CUDASIM_SUPPORT_H_

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "cudasim/settings.h"

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

namespace cudasim_test {

// Changes settings for one test.
class SettingsGuard {
 public:
  SettingsGuard() : saved_(cudasim::runtime::GetSettings()) {}
  ~SettingsGuard() { cudasim::runtime::GetSettings() = saved_; }
  SettingsGuard(const SettingsGuard&) = delete;
  SettingsGuard& operator=(const SettingsGuard&) = delete;
  cudasim::runtime::Settings* operator->() { return &cudasim::runtime::GetSettings(); }

 private:
  cudasim::runtime::Settings saved_;
};

template <typename T>
T* NewOnDevice(size_t count) {
  T* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, count * sizeof(T)), cudaSuccess);
  return pointer;
}

template <typename T>
T* Upload(const std::vector<T>& values) {
  T* const pointer = NewOnDevice<T>(values.size());
  EXPECT_EQ(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
            cudaSuccess);
  return pointer;
}

template <typename T>
std::vector<T> Download(const T* pointer, size_t count) {
  std::vector<T> values(count);
  EXPECT_EQ(cudaMemcpy(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return values;
}

}  // namespace cudasim_test

#endif  // LOCKSTEP_TESTS_CUDASIM_SUPPORT_H_
