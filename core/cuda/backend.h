// What differs between builds. For the files of this folder.
#pragma once

namespace lockstep::cuda {

// Whether programs contain the kernels (--config=cuda), and load NVIDIA's libraries to run them.
// Others load the kernels with a simulated GPU (simulated_gpu.h), unless they contain both, as
// tests do.
extern const bool kProgramsContainKernels;

// Makes cuBLASLt's functions those of NVIDIA's library, if this process's GPUs are real. Throws
// Error if there is none.
void RequireCublasLt();

}  // namespace lockstep::cuda
