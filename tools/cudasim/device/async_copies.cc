#include "async_copies.h"

#include <cstring>

#include "block_runner.h"
#include "cudasim/cp_async.h"
#include "race.h"
#include "report.h"

namespace cudasim {

AsyncCopies::AsyncCopies() : queues_(kMaxThreads) {}

void AsyncCopies::BeginBlock() {
  if (!used_) return;
  // Copies that nobody waited for are lost, as they might be on a GPU.
  for (Queue& queue : queues_) {
    queue.copies.clear();
    queue.group = 0;
  }
  used_ = false;
}

void AsyncCopies::Issue(int thread, void* shared, const void* global, int bytes, int source_bytes) {
  used_ = true;
  Queue& queue = queues_[static_cast<size_t>(thread)];
  std::memset(shared, 0xff, static_cast<size_t>(bytes));
  queue.copies.push_back({shared, global, bytes, source_bytes, queue.group});
}

void AsyncCopies::Commit(int thread) { ++queues_[static_cast<size_t>(thread)].group; }

void AsyncCopies::Wait(int thread, int pending) {
  Queue& queue = queues_[static_cast<size_t>(thread)];
  if (pending < 0) ++queue.group;  // the open group, too
  const int64_t before = pending < 0 ? queue.group : queue.group - pending;
  size_t done = 0;
  for (; done < queue.copies.size() && queue.copies[done].group < before; ++done) {
    const Copy& copy = queue.copies[done];
    std::memcpy(copy.shared, copy.global, static_cast<size_t>(copy.source_bytes));
    std::memset(static_cast<char*>(copy.shared) + copy.source_bytes, 0,
                static_cast<size_t>(copy.bytes - copy.source_bytes));
    RaceNoteWrite(copy.shared, static_cast<size_t>(copy.bytes));
  }
  queue.copies.erase(queue.copies.begin(), queue.copies.begin() + static_cast<ptrdiff_t>(done));
}

void IssueAsyncCopy(void* shared, const void* global, int bytes, int source_bytes, Where where) {
  BlockRunner* runner = BlockRunner::Current();
  const auto size = static_cast<uintptr_t>(bytes);
  if (!runner->shared().Contains(shared)) {
    Report(Bug::kOutOfBounds,
           Text() << "cp.async at " << where << ": the target is not in the block's shared memory");
  }
  if (reinterpret_cast<uintptr_t>(shared) % size != 0 ||
      (source_bytes > 0 && reinterpret_cast<uintptr_t>(global) % size != 0)) {
    Report(Bug::kMisaligned, Text() << "cp.async at " << where << ": source " << global
                                    << " and target " << shared << " must be aligned to " << bytes
                                    << " bytes");
  }
  if (source_bytes < 0 || source_bytes > bytes) {
    Report(Bug::kOther, Text() << "cp.async at " << where << " of " << source_bytes << " of "
                               << bytes << " bytes");
  }
  RaceNoteWrite(shared, size);
  if (source_bytes > 0) RaceNoteRead(global, static_cast<size_t>(source_bytes));
  runner->async_copies().Issue(runner->thread(), shared, global, bytes, source_bytes);
}

void CommitAsyncCopies() {
  BlockRunner* runner = BlockRunner::Current();
  runner->async_copies().Commit(runner->thread());
}

void WaitAsyncCopies(int pending) {
  BlockRunner* runner = BlockRunner::Current();
  runner->async_copies().Wait(runner->thread(), pending);
}

}  // namespace cudasim
