#include "models/train/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>

#include "core/error.h"

namespace lockstep::models {
namespace {

std::atomic<bool> waiting{false}, stopping{false}, guarded{false};
std::atomic<int> received{0};
std::atomic<const char*> lost_by_guard{""};

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);  // Slurm's warning before the end of a job
  struct sigaction hangup;
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaddset(&set, SIGHUP);
  }
  return set;
}

// Ends the process by the signal, as if it were not blocked.
void Die(int number) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  signal(number, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(number);
  _exit(128 + number);  // a container's first process does not die of it
}

void WaitForSignals() {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kOneSignal(1);
  const sigset_t set = Signals();
  Clock::time_point first;
  for (;;) {
    int number = 0;
    if (sigwait(&set, &number) != 0) continue;
    if (stopping) return;
    if (!guarded) Die(number);
    int none = 0;
    if (received.compare_exchange_strong(none, number)) {
      first = Clock::now();
      continue;
    }
    if (Clock::now() - first < kOneSignal) continue;
    const std::string text = StrCat("\nexiting at once: ", lost_by_guard.load(), "\n");
    pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    // Writing to a stopped terminal, or a pipe that nobody reads, would block.
    if (poll(&err, 1, 0) == 1 && (err.revents & POLLOUT) != 0) {
      [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
    }
    _exit(128 + number);
  }
}

}  // namespace

SignalThread::SignalThread() {
  LS_CHECK(!waiting.exchange(true), "there is already a SignalThread, and it takes all signals");
  const sigset_t set = Signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  stopping = false;
  thread_ = std::thread(WaitForSignals);
}

SignalThread::~SignalThread() {
  stopping = true;
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
  const sigset_t set = Signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  waiting = false;
}

InterruptGuard::InterruptGuard(const char* lost) {
  LS_CHECK(waiting, "no thread takes signals: begin main with 'models::SignalThread signals;'");
  received = 0;
  lost_by_guard = lost;
  guarded = true;
}

InterruptGuard::~InterruptGuard() { guarded = false; }

int InterruptGuard::signal() { return received; }

}  // namespace lockstep::models
