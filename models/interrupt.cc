#include "models/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace lockstep::models {
namespace {

std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);
struct sigaction previous_int, previous_term;

extern "C" void OnSignal(int number) {
  if (received.exchange(number) == 0) return;
  constexpr char kText[] = "\nleaving at once; the newest checkpoint stays\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(128 + number);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, &previous_int);
  sigaction(SIGTERM, &action, &previous_term);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &previous_int, nullptr);
  sigaction(SIGTERM, &previous_term, nullptr);
}

int InterruptGuard::signal() { return received; }

}  // namespace lockstep::models
