// What differs between builds. For the files of this folder.
#pragma once

namespace lockstep::cuda {

// Whether programs contain the kernels (--config=cuda), and load NVIDIA's libraries to run them.
// Others load the kernels with a simulated GPU (simulated_gpu.h), unless they contain both, as
// tests do.
extern const bool kProgramsContainKernels;

}  // namespace lockstep::cuda
