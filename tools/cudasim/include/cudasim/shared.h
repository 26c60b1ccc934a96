// Shared memory. Each declaration has its own slot in the block's arena, which is filled with NaN
// when the block first reaches it. The redzones around it are checked by AddressSanitizer, by the
// race checker, and (for writes, at the end of the block) in every build.
#ifndef CUDASIM_SHARED_H_
#define CUDASIM_SHARED_H_

#include <cstddef>

#include "cudasim/thread.h"

namespace cudasim {

// A declaration of shared memory: constant-initialised, numbered at its first use.
struct SharedSite {
  const char* name;
  size_t bytes;
  size_t alignment;
  Where where;
  unsigned number = 0;  // 0: not numbered yet
};

void* StaticShared(SharedSite* site);
// The block's dynamic shared memory; at least 16-byte aligned.
void* DynamicShared(size_t alignment, Where where);

template <typename T, size_t N>
struct ArrayOf {
  using type = T[N];
};

}  // namespace cudasim

// Declares T (&name)[n], one per block.
#define CUDASIM_SHARED_ARRAY(T, name, n)                                                       \
  static constinit ::cudasim::SharedSite cudasim_site_of_##name{                               \
      #name, sizeof(T) * (n), alignof(T) < 16 ? 16 : alignof(T), ::cudasim::Where::current()}; \
  auto& name = *static_cast<typename ::cudasim::ArrayOf<T, (n)>::type*>(                       \
      ::cudasim::StaticShared(&cudasim_site_of_##name))

// Declares T* name; all such declarations in a kernel share the same memory.
#define CUDASIM_DYN_SHARED(T, name) \
  T* const name = static_cast<T*>(::cudasim::DynamicShared(alignof(T), ::cudasim::Where::current()))

#endif  // CUDASIM_SHARED_H_
