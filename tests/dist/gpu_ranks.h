// Ranks as threads of the test, each with its own GPU (real or simulated) and a group
// over NCCL.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "dist/control/control_plane.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// f32 [n] on the group's device.
inline Tensor Ones(const ProcessGroup& g, int64_t n = 100) {
  return Tensor::Full({n}, 1, DType::kF32, g.device());
}

// What a rank makes its group from.
struct GpuRank {
  std::shared_ptr<ControlPlane> control;
  GroupOptions options;  // with its device
};

// Runs `body` on one thread per rank, whose current device and stream are the rank's. Returns the
// ranks' errors, "" for none.
std::vector<std::string> ErrorsOnGpus(int size, const std::function<void(GpuRank)>& body,
                                      const GroupOptions& options = {});

// The same, with a group for each rank.
std::vector<std::string> ErrorsOnGpus(int size, const std::function<void(ProcessGroup&)>& body,
                                      const GroupOptions& options = {});

// The same for ranks that must not throw: fails the test with their errors.
void RunOnGpus(int size, const std::function<void(ProcessGroup&)>& body,
               const GroupOptions& options = {});

}  // namespace lockstep::dist

#define SKIP_WITHOUT_GPUS(size)               \
  if (lockstep::cuda::DeviceCount() < (size)) \
  GTEST_SKIP() << "this needs " << (size) << " GPUs, simulated or real"

// ErrorsOnGpus with these arguments, as `errors`.
#define RUN_OR_SKIP(size, ...) \
  SKIP_WITHOUT_GPUS(size);     \
  const auto errors = ErrorsOnGpus(size, __VA_ARGS__)
