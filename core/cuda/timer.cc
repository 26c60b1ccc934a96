#include "core/cuda/timer.h"

#include "core/cuda/device.h"
#include "core/cuda/error.h"

namespace lockstep::cuda {

Timer::Timer(Stream stream) : stream_(stream) {
  SetDevice(stream.device);
  LS_CUDA(cudaEventCreate(&begin_));
  LS_CUDA(cudaEventCreate(&end_));
}

Timer::~Timer() {
  if (begin_ != nullptr) LS_CUDA_WARN(cudaEventDestroy(begin_));
  if (end_ != nullptr) LS_CUDA_WARN(cudaEventDestroy(end_));
}

void Timer::Start() {
  SetDevice(stream_.device);
  LS_CUDA(cudaEventRecord(begin_, static_cast<cudaStream_t>(stream_.handle.get())));
}

double Timer::Stop() {
  SetDevice(stream_.device);
  LS_CUDA(cudaEventRecord(end_, static_cast<cudaStream_t>(stream_.handle.get())));
  LS_CUDA(cudaEventSynchronize(end_));
  float milliseconds = 0;
  LS_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
  return milliseconds * 1e-3;
}

}  // namespace lockstep::cuda
