// Lockstep is compiled for CPUs with AVX2 and FMA (x86-64-v3). On an older one, the first such
// instruction would end the process by SIGILL, without a word; this says why, before main.
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace lockstep {
namespace {

#ifdef __x86_64__
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

}  // namespace
}  // namespace lockstep
