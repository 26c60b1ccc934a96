// The race checker's versions of the functions that code compiled with -fsanitize=thread calls. Do
// not link them with the real ThreadSanitizer.
#ifdef CUDASIM_RACE

#include <cstdint>
#include <type_traits>

#include "race_checker.h"

namespace {

inline void Note(const volatile void* p, size_t bytes, bool write, bool atomic, const void* code) {
  cudasim::RaceChecker* checker = cudasim::RaceChecker::Current();
  if (checker != nullptr) {
    checker->Access(reinterpret_cast<uintptr_t>(p), bytes, write, atomic, code);
  }
}

}  // namespace

// NOLINTBEGIN: the compiler's names
#define CUDASIM_CODE __builtin_return_address(0)
#define CUDASIM_PLAIN(n)                                                             \
  void __tsan_read##n(void* p) { Note(p, n, false, false, CUDASIM_CODE); }           \
  void __tsan_write##n(void* p) { Note(p, n, true, false, CUDASIM_CODE); }           \
  void __tsan_unaligned_read##n(void* p) { Note(p, n, false, false, CUDASIM_CODE); } \
  void __tsan_unaligned_write##n(void* p) { Note(p, n, true, false, CUDASIM_CODE); } \
  void __tsan_volatile_read##n(void* p) { Note(p, n, false, false, CUDASIM_CODE); }  \
  void __tsan_volatile_write##n(void* p) { Note(p, n, true, false, CUDASIM_CODE); }

#define CUDASIM_FETCH(bits, name, T)                                  \
  T __tsan_atomic##bits##_fetch_##name(volatile T* p, T value, int) { \
    Note(p, sizeof(T), true, true, CUDASIM_CODE);                     \
    return __atomic_fetch_##name(p, value, __ATOMIC_SEQ_CST);         \
  }

#define CUDASIM_COMPARE(bits, strength, weak, T)                                                  \
  int __tsan_atomic##bits##_compare_exchange_##strength(volatile T* p, T* expected, T value, int, \
                                                        int) {                                    \
    Note(p, sizeof(T), true, true, CUDASIM_CODE);                                                 \
    return __atomic_compare_exchange_n(p, expected, value, weak, __ATOMIC_SEQ_CST,                \
                                       __ATOMIC_SEQ_CST);                                         \
  }

#define CUDASIM_ATOMIC(bits, T)                                                                  \
  T __tsan_atomic##bits##_load(const volatile T* p, int) {                                       \
    Note(p, sizeof(T), false, true, CUDASIM_CODE);                                               \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                 \
  }                                                                                              \
  void __tsan_atomic##bits##_store(volatile T* p, T value, int) {                                \
    Note(p, sizeof(T), true, true, CUDASIM_CODE);                                                \
    __atomic_store_n(p, value, __ATOMIC_SEQ_CST);                                                \
  }                                                                                              \
  T __tsan_atomic##bits##_exchange(volatile T* p, T value, int) {                                \
    Note(p, sizeof(T), true, true, CUDASIM_CODE);                                                \
    return __atomic_exchange_n(p, value, __ATOMIC_SEQ_CST);                                      \
  }                                                                                              \
  T __tsan_atomic##bits##_compare_exchange_val(volatile T* p, T expected, T value, int, int) {   \
    Note(p, sizeof(T), true, true, CUDASIM_CODE);                                                \
    __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return expected;                                                                             \
  }                                                                                              \
  CUDASIM_COMPARE(bits, strong, false, T)                                                        \
  CUDASIM_COMPARE(bits, weak, true, T)                                                           \
  CUDASIM_FETCH(bits, add, T)                                                                    \
  CUDASIM_FETCH(bits, sub, T)                                                                    \
  CUDASIM_FETCH(bits, and, T)                                                                    \
  CUDASIM_FETCH(bits, or, T)                                                                     \
  CUDASIM_FETCH(bits, xor, T)                                                                    \
  CUDASIM_FETCH(bits, nand, T)

extern "C" {
CUDASIM_PLAIN(1)
CUDASIM_PLAIN(2)
CUDASIM_PLAIN(4)
CUDASIM_PLAIN(8)
CUDASIM_PLAIN(16)
void __tsan_read_range(void* p, size_t bytes) { Note(p, bytes, false, false, CUDASIM_CODE); }
void __tsan_write_range(void* p, size_t bytes) { Note(p, bytes, true, false, CUDASIM_CODE); }
CUDASIM_ATOMIC(8, uint8_t)
CUDASIM_ATOMIC(16, uint16_t)
CUDASIM_ATOMIC(32, uint32_t)
CUDASIM_ATOMIC(64, uint64_t)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
// NOLINTEND

#endif
