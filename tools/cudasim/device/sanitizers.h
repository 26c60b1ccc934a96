// Notifications for AddressSanitizer. This library is compiled without sanitizers, to stay fast,
// and detects at run time whether the program has one. ThreadSanitizer is not told about fibers,
// since each switch would then cost time in proportion to their number: it sees a block as part of
// the thread that runs it. The race checker covers what happens within a block.
#ifndef CUDASIM_DEVICE_SANITIZERS_H_
#define CUDASIM_DEVICE_SANITIZERS_H_

#include <cstddef>

extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* p, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* p, size_t bytes);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* stack,
                                                          size_t bytes);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_stack,
                                                           size_t* old_bytes);
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
__attribute__((weak)) void __lsan_disable();
__attribute__((weak)) void __lsan_enable();
}

namespace cudasim {

inline bool HasAsan() { return __asan_poison_memory_region != nullptr; }

inline void PoisonMemory(const void* p, size_t bytes) {
  if (HasAsan()) __asan_poison_memory_region(p, bytes);
}
inline void UnpoisonMemory(const void* p, size_t bytes) {
  if (HasAsan()) __asan_unpoison_memory_region(p, bytes);
}

// An abandoned grid leaks what its threads have allocated.
class IgnoreLeaks {
 public:
  explicit IgnoreLeaks(bool ignore) : ignore_(ignore && __lsan_disable != nullptr) {
    if (ignore_) __lsan_disable();
  }
  ~IgnoreLeaks() {
    if (ignore_) __lsan_enable();
  }
  IgnoreLeaks(const IgnoreLeaks&) = delete;
  IgnoreLeaks& operator=(const IgnoreLeaks&) = delete;

 private:
  bool ignore_;
};

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_SANITIZERS_H_
