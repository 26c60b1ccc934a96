#include "fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sanitizers.h"

#ifdef CUDASIM_UCONTEXT
#include <ucontext.h>
#endif

namespace cudasim {
namespace {

constexpr size_t kGuardBytes = 4096;
// One page more than the stack, so that the frames of adjacent fibers fall into different cache
// sets.
constexpr size_t kPitch = FiberPool::kStackBytes + kGuardBytes;

#ifdef CUDASIM_UCONTEXT

void MakeContext(Fiber* fiber, size_t, void (*entry)()) {
  if (fiber->context == nullptr) fiber->context = new ucontext_t;
  auto* context = static_cast<ucontext_t*>(fiber->context);
  getcontext(context);
  context->uc_stack.ss_sp = fiber->stack;
  context->uc_stack.ss_size = fiber->stack_bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

#else

// The registers that a call preserves. The floating-point control words are left alone: no kernel
// changes them. All fibers that wait at the same place have the same return address, which the
// processor can thus predict.
asm(R"(
.text
.p2align 4
.hidden cudasim_switch_stack
.globl cudasim_switch_stack
.type cudasim_switch_stack, @function
cudasim_switch_stack:
  .cfi_startproc
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .cfi_endproc
.size cudasim_switch_stack, .-cudasim_switch_stack
)");

void MakeContext(Fiber* fiber, size_t offset, void (*entry)()) {
  auto* top = reinterpret_cast<uintptr_t*>(fiber->stack + fiber->stack_bytes - offset);
  *--top = 0;  // entry's return address: ends backtraces
  *--top = reinterpret_cast<uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;  // the registers
  fiber->context = top;
}

#endif

// AddressSanitizer knows the bounds of the OS thread's own stack, and reports them on leaving it.
constinit thread_local Fiber* left_fiber = nullptr;

void FinishSwitch(void* fake_stack) {
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
  if (left_fiber->stack == nullptr) {
    left_fiber->stack = static_cast<char*>(const_cast<void*>(stack));
    left_fiber->stack_bytes = bytes;
  }
}

}  // namespace

void EnterFiber() {
  if (HasAsan()) FinishSwitch(nullptr);
}

namespace internal {

#ifdef CUDASIM_UCONTEXT
void Jump(Fiber* from, Fiber* to) {
  if (from->context == nullptr) from->context = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from->context), static_cast<ucontext_t*>(to->context));
}
#endif

void BeforeSwitch(Fiber* from, Fiber* to) {
  left_fiber = from;
  __sanitizer_start_switch_fiber(&from->asan_fake_stack, to->stack, to->stack_bytes);
}

void AfterSwitch(Fiber* from) { FinishSwitch(from->asan_fake_stack); }

}  // namespace internal

void AbandonFiber(Fiber* from, Fiber* to) {
  if (HasAsan()) {
    left_fiber = from;
    __sanitizer_start_switch_fiber(nullptr, to->stack, to->stack_bytes);
  }
  internal::Jump(from, to);
  std::abort();  // an abandoned fiber is never entered
}

FiberPool::FiberPool(void (*entry)()) : entry_(entry), bytes_(kFibers * kPitch), fibers_(kFibers) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("cudasim: no address space for the stacks of a block's threads");
    std::abort();
  }
  memory_ = static_cast<char*>(memory);
  free_.reserve(kFibers);
}

FiberPool::~FiberPool() {
#ifdef CUDASIM_UCONTEXT
  for (int i = 0; i < made_; ++i) delete static_cast<ucontext_t*>(fibers_[i].context);
#endif
  UnpoisonMemory(memory_, bytes_);
  munmap(memory_, bytes_);
}

void FiberPool::Prepare(Fiber* fiber) {
  // Frames of different fibers begin in different cache lines of their pages.
  const size_t offset = static_cast<size_t>(fiber - fibers_.data()) % 15 * 256;
  MakeContext(fiber, offset, entry_);
}

Fiber* FiberPool::Take() {
  if (!free_.empty()) {
    Fiber* fiber = free_.back();
    free_.pop_back();
    return fiber;
  }
  Fiber* fiber = &fibers_.at(static_cast<size_t>(made_));
  char* low = memory_ + static_cast<size_t>(made_) * kPitch;
  ++made_;
  // If the kernel has no more mappings, overflows go unnoticed.
  if (mprotect(low, kGuardBytes, PROT_NONE) != 0) std::perror("cudasim: guard page");
  fiber->stack = low + kGuardBytes;
  fiber->stack_bytes = kStackBytes;
  Prepare(fiber);
  return fiber;
}

void FiberPool::Reset() {
  free_.clear();
  for (int i = made_ - 1; i >= 0; --i) {
    UnpoisonMemory(fibers_[static_cast<size_t>(i)].stack, kStackBytes);
    Prepare(&fibers_[static_cast<size_t>(i)]);
    free_.push_back(&fibers_[static_cast<size_t>(i)]);
  }
}

bool FiberPool::OnStack(const void* p) const {
  const auto offset = static_cast<size_t>(static_cast<const char*>(p) - memory_);
  return offset < bytes_;
}

bool FiberPool::OnGuard(const void* p) const {
  return OnStack(p) &&
         static_cast<size_t>(static_cast<const char*>(p) - memory_) % kPitch < kGuardBytes;
}

}  // namespace cudasim
