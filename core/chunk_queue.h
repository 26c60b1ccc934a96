// The queue from which the threads of a pool take their work.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/thread_pool.h"

namespace lockstep::internal {

// Hands out the chunks of one job after another. A chunk is claimed by a compare-and-swap on a
// ticket, which holds the job's number and its remaining chunks. A thread that stalls between
// reading the ticket and claiming may already see some of the next job's members; its ticket is
// stale by then, so it claims nothing.
class ChunkQueue {
 public:
  struct Chunk {
    ChunkFunction function;
    const void* context;
    int64_t index;
  };

  // Sets up the next job, of `chunks` > 0. One thread calls this once all chunks of the last job
  // are done. Other threads may be in Take; they get chunks of the new job after Publish.
  void Prepare(ChunkFunction function, const void* context, uint32_t chunks) {
    function_.store(function, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    chunks_.store(chunks, std::memory_order_relaxed);
    unfinished_.store(chunks, std::memory_order_relaxed);
  }
  void Publish() {
    ticket_.store(uint64_t{++job_} << 32 | chunks_.load(std::memory_order_relaxed),
                  std::memory_order_release);
  }

  // The next chunk, or nothing if none is left. The caller must run it and then call Done.
  std::optional<Chunk> Take() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (const auto left = static_cast<uint32_t>(ticket)) {
      const Chunk chunk = {function_.load(std::memory_order_relaxed),
                           context_.load(std::memory_order_relaxed),
                           int64_t{chunks_.load(std::memory_order_relaxed)} - left};
      // Succeeds only while this ticket's job has chunks left: the next job cannot have begun, so
      // what was read above belongs to this one.
      if (ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire)) {
        return chunk;
      }
    }
    return std::nullopt;
  }
  void Done() { unfinished_.fetch_sub(1, std::memory_order_acq_rel); }
  bool AllDone() const { return unfinished_.load(std::memory_order_acquire) == 0; }

 private:
  uint32_t job_ = 0;
  std::atomic<ChunkFunction> function_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> chunks_{0};
  std::atomic<uint64_t> ticket_{0};  // number of the job << 32 | its unclaimed chunks
  std::atomic<uint32_t> unfinished_{0};
};

}  // namespace lockstep::internal
