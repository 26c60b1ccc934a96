#include "core/system/instruction_set.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "core/system/environment.h"

namespace lockstep {
namespace {

#ifdef __x86_64__
// Lockstep is compiled for CPUs with AVX2 and FMA (x86-64-v3). On an older one, the first such
// instruction would end the process by SIGILL, without a word; this says why, before main.
[[gnu::constructor(101), gnu::target("arch=x86-64")]] void CheckInstructionSet() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2")) {
    return;
  }
  constexpr std::string_view kMessage =
      "lockstep: this CPU lacks AVX2, FMA or BMI2, without which Lockstep does not run: use one of "
      "2015 or later (x86-64-v3), and in a virtual machine the host's model of CPU\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  _exit(EXIT_FAILURE);
}
#endif

constexpr char kVariable[] = "LOCKSTEP_MAX_CPU_ISA";
constexpr std::array<std::string_view, 4> kNames = {"avx2", "avx512", "avx512_bf16", "amx"};

InstructionSet Limit() {
  const auto named = EnvironmentVariable(kVariable);
  if (!named) return InstructionSet::kAmx;
  const auto found = std::ranges::find(kNames, *named);
  if (found == kNames.end()) {
    throw InputError(StrCat(kVariable, "=", *named,
                            ": write avx2, avx512, avx512_bf16 or amx, or leave it unset for the "
                            "best that the CPU has"));
  }
  return static_cast<InstructionSet>(found - kNames.begin());
}

}  // namespace

std::string ToString(InstructionSet set) {
  return std::string(kNames.at(static_cast<size_t>(set)));
}

InstructionSet CpuInstructionSet() {
#ifdef __x86_64__
  if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))) {
    return InstructionSet::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return InstructionSet::kAvx512;
#ifndef __clang__  // clang 14, which only the fuzzers are built with, does not know of AMX
  if (__builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16")) {
    return InstructionSet::kAmx;
  }
#endif
  return InstructionSet::kAvx512Bf16;
#else
  return InstructionSet::kAvx2;
#endif
}

InstructionSet UsedInstructionSet() {
  static const InstructionSet used = std::min(CpuInstructionSet(), Limit());
  return used;
}

}  // namespace lockstep
