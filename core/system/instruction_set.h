// The CPU's instruction sets among which kernels choose when they run.
#pragma once

#include <string>

namespace lockstep {

// Each includes those before it. All CPUs that Lockstep runs on have kAvx2 (with FMA: x86-64-v3).
enum class InstructionSet {
  kAvx2,
  kAvx512,      // AVX-512 F, DQ, BW and VL
  kAvx512Bf16,  // and products of bf16
  kAmx,         // and those of tiles
};

// "avx2", "avx512", "avx512_bf16", "amx".
std::string ToString(InstructionSet set);

// The best that this CPU and its kernel have.
InstructionSet CpuInstructionSet();

// What kernels use, our own loops and oneDNN's products alike: the CPU's best, or less if the
// environment variable LOCKSTEP_MAX_CPU_ISA names less, by one of the names above. It stays the
// same for the life of the process. Throws InputError for another name.
InstructionSet UsedInstructionSet();

}  // namespace lockstep
