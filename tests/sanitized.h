// Whether this build runs under AddressSanitizer or ThreadSanitizer: ten times slower, with larger
// frames and without caches of memory.
#pragma once

namespace lockstep::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace lockstep::test
