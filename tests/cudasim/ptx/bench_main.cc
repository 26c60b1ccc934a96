// Times the kernels of our_kernels.h on one thread: bench [REPETITIONS [PART_OF_A_NAME
// [races|counters]]]. Prints the least time; with "races", while races are sought, with "counters",
// while everything is counted.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "tests/cudasim/ptx/our_kernels.h"
#include "tools/cudasim/ptx/detectors/counters.h"

namespace {

double ProcessorSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace cudasim::ptx;  // NOLINT
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 5;
  Settings settings;
  const std::string_view with = argc > 3 ? argv[3] : "";
  settings.find_races = with == "races";
  Counters counters;
  if (with == "counters") settings.counters = &counters;
  for (KernelRun& run : OurKernels()) {
    if (argc > 2 && run.name.find(argv[2]) == std::string::npos) continue;
    double least = 1e30;
    for (int j = 0; j < repetitions; ++j) {
      const double begin = ProcessorSeconds();
      Run(run.launch, settings);
      least = std::min(least, ProcessorSeconds() - begin);
    }
    std::printf("%-34s %8.2f ms   error %.3f of the tolerance\n", run.name.c_str(), least * 1e3,
                run.error());
  }
  // A launch that does nothing: one thread that returns.
  Image image(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n");
  Launch launch;
  launch.program = image.FindKernel("empty");
  constexpr int kLaunches = 5000;
  const double begin = ProcessorSeconds();
  for (int j = 0; j < kLaunches; ++j) Run(launch, settings);
  std::printf("%-34s %8.2f us\n", "an empty launch",
              (ProcessorSeconds() - begin) / kLaunches * 1e6);
}
