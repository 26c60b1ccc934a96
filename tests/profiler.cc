// Preloaded into a program, does what a sampling profiler does: SIGPROF a thousand times per second
// of CPU time, with a handler that uses the stack of whichever thread it interrupts.
#include <signal.h>
#include <sys/time.h>

namespace {

void TakeSample(int) {
  volatile char frames[4096];
  for (volatile char& c : frames) c = 1;
}

[[gnu::constructor]] void StartProfiler() {
  struct sigaction action = {};
  action.sa_handler = TakeSample;
  action.sa_flags = SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
  const itimerval period = {.it_interval = {0, 1000}, .it_value = {0, 1000}};
  setitimer(ITIMER_PROF, &period, nullptr);
}

}  // namespace
