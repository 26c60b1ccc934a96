// The counterpart of cp.async: copies from global to shared memory that a thread issues, collects
// in groups, and waits for. They are made at the wait; until then the target holds NaN.
#ifndef CUDASIM_CP_ASYNC_H_
#define CUDASIM_CP_ASYNC_H_

#include "cudasim/thread.h"

namespace cudasim {

void IssueAsyncCopy(void* shared, const void* global, int bytes, int source_bytes, Where where);
void CommitAsyncCopies();
void WaitAsyncCopies(int pending);

// Copies Bytes (4, 8, 16) bytes, with both sides aligned to that. Reads only source_bytes from the
// source and fills up with zeros: with 0 it does not read the source.
template <int Bytes>
void CpAsync(void* shared, const void* global, int source_bytes = Bytes,
             Where where = Where::current()) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  // Reads the source right here, so that sanitizers name the caller's line.
  if (source_bytes > 0) {
    const auto* bytes = static_cast<const volatile char*>(global);
    (void)bytes[0];
    (void)bytes[source_bytes - 1];
  }
  IssueAsyncCopy(shared, global, Bytes, source_bytes, where);
}

// Closes the group of copies since the last commit.
inline void CpAsyncCommit() { CommitAsyncCopies(); }
// Waits for all groups of this thread except the newest `Pending`.
template <int Pending>
void CpAsyncWait() {
  static_assert(Pending >= 0);
  WaitAsyncCopies(Pending);
}
// Waits for all copies, committed or not.
inline void CpAsyncWaitAll() { WaitAsyncCopies(-1); }

}  // namespace cudasim

#endif  // CUDASIM_CP_ASYNC_H_
