// Shared by the tests of the CUDA backend.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <future>

#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "core/stream.h"
#include "tests/gpu_test.h"

namespace lockstep::cuda {

using test::GpuTest;
using test::kGpu;
inline constexpr Device kSecondGpu{DeviceType::kCuda, 1};

// A blocked stream: work submitted to it waits until Open(). The destructor opens it and waits for
// the stream.
class Blocked {
 public:
  explicit Blocked(Stream stream) : stream_(stream), opened_(open_.get_future()) {
    SetDevice(stream.device);
    LS_CUDA(cudaLaunchHostFunc(
        static_cast<cudaStream_t>(stream.handle.get()),
        [](void* future) { static_cast<std::future<void>*>(future)->wait(); }, &opened_));
  }
  ~Blocked() {
    Open();
    Synchronize(stream_);
  }
  void Open() {
    if (!open_already_) open_.set_value();
    open_already_ = true;
  }

 private:
  Stream stream_;
  std::promise<void> open_;
  std::future<void> opened_;
  bool open_already_ = false;
};

}  // namespace lockstep::cuda
