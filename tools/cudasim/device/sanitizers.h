// What AddressSanitizer and ThreadSanitizer have to be told; nothing in other builds.
#ifndef CUDASIM_DEVICE_SANITIZERS_H_
#define CUDASIM_DEVICE_SANITIZERS_H_

#if defined(__SANITIZE_ADDRESS__)
#define CUDASIM_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define CUDASIM_TSAN 1
#include <sanitizer/tsan_interface.h>
#endif

#include <cstddef>

namespace cudasim {

#ifdef CUDASIM_ASAN
inline constexpr bool kAsan = true;
inline void PoisonMemory(const void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
inline void UnpoisonMemory(const void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
#else
inline constexpr bool kAsan = false;
inline void PoisonMemory(const void*, size_t) {}
inline void UnpoisonMemory(const void*, size_t) {}
#endif

}  // namespace cudasim

#endif  // CUDASIM_DEVICE_SANITIZERS_H_
