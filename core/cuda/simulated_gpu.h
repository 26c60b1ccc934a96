// The simulated GPU of this build: a library of its own, because a run on the CPU does without it
// and compiling it takes as long as a third of the rest.
#pragma once

namespace lockstep::cuda {

// Loads //kernels:simulated_gpu, whose kernels register themselves, from where
// LOCKSTEP_SIMULATED_GPU says, else from beside the program or from kernels/ of a folder above it
// (bazel-bin). Does nothing where the program contains the simulated GPU (//kernels:simulated) or
// has loaded it, and in builds for real GPUs. Throws InputError, with what to type, where there is
// no library or one of other sources. To be called before other threads use the GPU; ParseDevice
// does.
void LoadSimulatedGpu();

}  // namespace lockstep::cuda
