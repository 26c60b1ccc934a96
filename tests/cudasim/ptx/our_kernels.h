// Kernels of Lockstep as nvcc compiled them (testdata/), with inputs and references in f64: for a
// test and for measurements.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/cudasim/ptx/image.h"
#include "tools/cudasim/ptx/launch.h"

namespace cudasim::ptx {

struct KernelRun {
  std::string name;
  std::unique_ptr<Image> image;
  Launch launch;
  // The largest error in the results, in units of the op cases' tolerance for their type.
  std::function<double()> error;
  std::vector<std::shared_ptr<void>> others;  // what else the kernel writes
};

// Layer norm f32 and bf16 [1024, 768], softmax f32 [1024, 1024] and [1024, 1001], flash attention
// bf16 [1, 512, 4, 64], gelu f32 [1M].
std::vector<KernelRun> OurKernels();

}  // namespace cudasim::ptx
