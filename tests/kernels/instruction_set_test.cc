// One variable limits what our loops and oneDNN's products use. A process settles this once, so
// each question is asked in a new one.
#include "core/system/instruction_set.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"

namespace lockstep {
namespace {

using enum InstructionSet;

// Whether f() is true in a child process with LOCKSTEP_MAX_CPU_ISA=`limit`.
template <class F>
bool HoldsWith(const char* limit, const F& f) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("LOCKSTEP_MAX_CPU_ISA", limit, 1);
    _exit(f() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(InstructionSet, TheLimitHoldsForLoopsAndProducts) {
  for (const InstructionSet limit : {kAvx2, kAvx512, kAvx512Bf16, kAmx}) {
    const InstructionSet want = std::min(limit, CpuInstructionSet());
    EXPECT_TRUE(HoldsWith(ToString(limit).c_str(), [&] {
      return UsedInstructionSet() == want && cpu::HasAvx512() == (want >= kAvx512) &&
             cpu::HasBF16Products() == (want >= kAvx512Bf16);
    })) << ToString(limit);
  }
}

TEST(InstructionSet, WithoutALimitTheBestIsUsed) {
  EXPECT_TRUE(HoldsWith("", [] { return UsedInstructionSet() == CpuInstructionSet(); }));
}

TEST(InstructionSet, OtherNamesAreRefused) {
  EXPECT_TRUE(HoldsWith("AVX2", [] {
    try {
      UsedInstructionSet();
      return false;
    } catch (const InputError& error) {
      const std::string what = error.what();
      return what.find("LOCKSTEP_MAX_CPU_ISA=AVX2") != std::string::npos &&
             what.find("avx512_bf16") != std::string::npos;
    }
  }));
}

}  // namespace
}  // namespace lockstep
