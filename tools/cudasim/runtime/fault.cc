// Explains faults at device addresses: host accesses, out-of-bounds accesses of kernels, freed
// memory.
#include <pthread.h>
#include <ucontext.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>

#include "cudasim/access.h"
#include "cudasim/settings.h"
#include "state.h"

#if defined(__SANITIZE_THREAD__)
// The handler below may allocate: what it interrupts is an access to device memory, not the
// allocator.
extern "C" __attribute__((weak)) const char* __tsan_default_options() {
  return "report_signal_unsafe=0";
}
#endif

namespace cudasim::runtime {
namespace {

struct sigaction previous_segv;
struct sigaction previous_bus;

std::string Hex(uintptr_t address) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%zx", static_cast<size_t>(address));
  return text;
}

// Explains the fault; false if it has nothing to do with the simulated GPU.
bool Explain(uintptr_t address, bool in_kernel, Bug* bug, std::string* text) {
  std::shared_ptr<Block> block;
  {
    // Because of a bug in the simulator, the faulting thread may hold the lock itself: an unsafe
    // read is better than none.
    Lock lock(GetState().mutex, std::defer_lock);
    for (int i = 0; i < 1000 && !lock.try_lock(); ++i) std::this_thread::yield();
    block = FindNear(address);
  }
  const std::string who = in_kernel ? "a kernel uses " : "the host uses ";
  if (block == nullptr) {
    *bug = Bug::kOutOfBounds;
    *text = "invalid access at " + Hex(address);
    return in_kernel;
  }
  const std::string where = Position(*block, address);
  if (block->freed) {
    *bug = Bug::kOutOfBounds;
    *text = who + "freed memory at " + Hex(address) + ", " + where + DescribeWithSites(*block);
  } else if (!block->contains(address)) {
    *bug = Bug::kOutOfBounds;
    *text =
        who + "memory out of bounds at " + Hex(address) + ", " + where + DescribeWithSites(*block);
  } else if (in_kernel) {
    *bug = Bug::kOutOfBounds;
    *text = "a kernel uses memory of another device, without peer access, at " + Hex(address) +
            ", " + where + DescribeWithSites(*block);
  } else {
    *bug = Bug::kHostAccess;
    *text = "host access to device memory at " + Hex(address) + ", " + where +
            DescribeWithSites(*block) + "  copy it with cudaMemcpy instead";
  }
  return true;
}

void HandleFault(int signal, siginfo_t* info, void* context) {
  // The operating system removes all access rights from signal handlers.
  RestoreAccess();
  // ThreadSanitizer blocks all signals in a handler, and a kernel that leaves it by a jump would
  // leave them blocked: the thread's next fault would end the process.
  pthread_sigmask(SIG_SETMASK, &static_cast<const ucontext_t*>(context)->uc_sigmask, nullptr);
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const auto leave_kernel = GetThread().leave_kernel;
  const bool in_kernel = leave_kernel != nullptr;
  Bug bug = Bug::kOther;
  std::string text;
  if (Explain(address, in_kernel, &bug, &text)) {
    if (leave_kernel != nullptr) leave_kernel(address, bug, std::move(text));
    Report(bug, text);
  }
  const struct sigaction& previous = signal == SIGSEGV ? previous_segv : previous_bus;
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, info, context);
    return;
  }
  // The access faults again, now fatally.
  struct sigaction fatal = {};
  fatal.sa_handler = SIG_DFL;
  sigaction(signal, &fatal, nullptr);
}

}  // namespace

void InstallFaultHandler() {
#if defined(__SANITIZE_ADDRESS__)
  return;  // the sanitizer's handler and redzones say more
#endif
  struct sigaction action = {};
  action.sa_sigaction = HandleFault;
  // The handler runs on the thread's own stack, since kernels leave it by a jump. For the same
  // reason SIGSEGV is not blocked.
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_segv);
  sigaction(SIGBUS, &action, &previous_bus);
}

}  // namespace cudasim::runtime
