// Measures, by the device's clock, how long the work submitted to a stream takes.
#pragma once

#include <cuda_runtime.h>

#include "core/stream.h"

namespace lockstep::cuda {

class Timer {
 public:
  explicit Timer(Stream stream);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void Start();
  // Ends the interval that Start began, waits for its work and returns its seconds.
  double Stop();

 private:
  Stream stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace lockstep::cuda
