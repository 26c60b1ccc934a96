// Ctrl-C and termination, as users of trainers expect them.
#pragma once

#include <thread>

namespace lockstep::models {

// Takes SIGINT, SIGTERM, SIGUSR1 (by which schedulers warn of the end) and SIGHUP (unless it is
// ignored, as under nohup) for the whole process in a thread that waits for them, so that no signal
// handler interrupts any code. SIGPIPE and SIGXFSZ are ignored: what cannot be written is an error
// where it is written. Make it at the start of main: threads that exist before do not block the
// signals, and would die of them. At most one at a time.
//
// While an InterruptGuard exists, the first signal is only noted, so that the step can finish and a
// checkpoint be written, or a server end its texts. Those of the next second belong to it
// (`timeout` signals a process and its group); a later one ends the program at once, which is said
// on stderr. Without a guard a signal ends the program as usual.
class SignalThread {
 public:
  SignalThread();
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  std::thread thread_;
};

// At most one at a time. Throws Error without a SignalThread, which takes the signals.
class InterruptGuard {
 public:
  // `lost`: what is said of a program that ends at once; it outlives the guard.
  explicit InterruptGuard(const char* lost = "what was not saved is lost");
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // The signal that came since the guard was made, or 0.
  static int signal();
};

}  // namespace lockstep::models
