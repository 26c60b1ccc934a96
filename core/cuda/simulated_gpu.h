// Loads the simulated GPU. It is a separate library because runs on the CPU do not need it, nor the
// nvcc that compiles its kernels.
#pragma once

namespace lockstep::cuda {

// Loads //kernels:simulated_gpu, whose kernels register themselves, from the path in
// LOCKSTEP_SIMULATED_GPU, or else from the program's folder or a folder above it, or its kernels/
// (bazel-bin), or from the folder of liblockstep.so. With --config=cuda the program has the
// kernels, and that path is of the simulator alone (//tools/cudasim/ptx:libcudart.so.13). Does
// nothing if the program contains the simulated GPU (//kernels:simulated) or has loaded it, or if
// its GPUs are real. If the library is missing or built from other sources, throws InputError that
// says what to type. Call it before other threads use the GPU; ParseDevice does.
void LoadSimulatedGpu();

}  // namespace lockstep::cuda
