// Loads this build's simulated GPU. It is a separate library because runs on the CPU do not need
// it, and compiling it takes a third as long as everything else.
#pragma once

namespace lockstep::cuda {

// Loads //kernels:simulated_gpu, whose kernels register themselves, from the path in
// LOCKSTEP_SIMULATED_GPU, or else from the program's folder or a folder above it, or its kernels/
// (bazel-bin), or from the folder of liblockstep.so. Does nothing if the program contains the
// simulated GPU (//kernels:simulated) or has loaded it, or in builds for real GPUs. If the library
// is missing or built from other sources, throws InputError that says what to type. Call it before
// other threads use the GPU; ParseDevice does.
void LoadSimulatedGpu();

}  // namespace lockstep::cuda
