// What the threads of a pool take their work from.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "core/thread_pool.h"

namespace lockstep::internal {

// The chunks of a job, one job after the other. A chunk is claimed by a compare-and-swap on a
// ticket, which names the job and counts what is left of it: nothing for a job that is over, so
// that whoever has stopped with its ticket in his hands gets nothing of the next job, of whose
// other members he may see some already.
class ChunkQueue {
 public:
  struct Chunk {
    ChunkFunction function;
    const void* context;
    int64_t index;
  };

  // The next job, of `chunks` > 0. By one thread, when all chunks of the last job are done, others
  // may be in Take; they get chunks of the new job from Publish on.
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

  // Nothing if nothing is left; otherwise it is to be done, and then Done is to be called.
  std::optional<Chunk> Take() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (const auto left = static_cast<uint32_t>(ticket)) {
      const Chunk chunk = {function_.load(std::memory_order_relaxed),
                           context_.load(std::memory_order_relaxed),
                           int64_t{chunks_.load(std::memory_order_relaxed)} - left};
      // Succeeds only while chunks of this ticket's job are left, so that what was read above is
      // that job's: the next one cannot have begun.
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
  std::atomic<uint64_t> ticket_{0};  // number of the job << 32 | chunks of it that nobody has yet
  std::atomic<uint32_t> unfinished_{0};
};

}  // namespace lockstep::internal
