// Fibers: separate stacks for the threads of a block, which wait for each other.
#ifndef CUDASIM_DEVICE_FIBER_H_
#define CUDASIM_DEVICE_FIBER_H_

#include <cstddef>
#include <vector>

#include "sanitizers.h"

// CUDASIM_UCONTEXT selects the portable switch, two orders of magnitude slower.
#if !defined(__x86_64__) && !defined(CUDASIM_UCONTEXT)
#define CUDASIM_UCONTEXT 1
#endif

namespace cudasim {

// An execution that can be left and entered again. A default-constructed one is the OS thread's own
// stack, once it is switched away from.
struct Fiber {
  void* context = nullptr;  // the stack pointer, or a ucontext_t without the assembly
  char* stack = nullptr;    // the lowest usable byte
  size_t stack_bytes = 0;
  void* asan_fake_stack = nullptr;
};

namespace internal {
#ifdef CUDASIM_UCONTEXT
void Jump(Fiber* from, Fiber* to);
#else
extern "C" void cudasim_switch_stack(void** save, void* load);
inline void Jump(Fiber* from, Fiber* to) { cudasim_switch_stack(&from->context, to->context); }
#endif
void BeforeSwitch(Fiber* from, Fiber* to);
void AfterSwitch(Fiber* from);
}  // namespace internal

// Leaves `from` and enters `to`; returns when something switches back to `from`.
inline void SwitchFiber(Fiber* from, Fiber* to) {
  if (HasAsan()) internal::BeforeSwitch(from, to);
  internal::Jump(from, to);
  if (HasAsan()) internal::AfterSwitch(from);
}

// Leaves the running fiber for good; it must be reset before its next use.
[[noreturn]] void AbandonFiber(Fiber* from, Fiber* to);

// Call this first in a fiber's entry function.
void EnterFiber();

// The fibers of one OS thread. All stacks are reserved at once, and take memory only when they are
// used.
class FiberPool {
 public:
  static constexpr int kFibers = 1024 + 1;
  static constexpr size_t kStackBytes = 64 * 1024;

  explicit FiberPool(void (*entry)());
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  // Returns a fiber that is ready to run `entry`, or waits where it was given back.
  Fiber* Take();
  void GiveBack(Fiber* fiber) { free_.push_back(fiber); }

  // Resets all fibers, wherever they are.
  void Reset();

  // Whether the address is on one of the stacks, or just below it, where an overflow lands.
  bool OnStack(const void* p) const;
  bool OnGuard(const void* p) const;

 private:
  void Prepare(Fiber* fiber);

  void (*entry_)();
  char* memory_ = nullptr;
  size_t bytes_ = 0;
  std::vector<Fiber> fibers_;
  int made_ = 0;  // how many have been used
  std::vector<Fiber*> free_;
};

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_FIBER_H_
