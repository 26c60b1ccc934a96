// Training batches in order, prefetched by a background thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "data/batch.h"
#include "data/sampler.h"
#include "data/token_source.h"

namespace lockstep::data {

// Returns the micro-batches 0, 1, ... (or the layout's micro_order) of start_step, then those of
// start_step + 1, and so on. Their contents depend only on the source, the sampler and the layout:
// a loader that starts at step s returns what one that started at step 0 returns from there on.
// Allocates nothing after construction. For one consumer thread.
class Loader {
 public:
  // Throws ArgumentError if the sampler's number of tokens is not the source's.
  Loader(std::shared_ptr<const TokenSource> source, const Sampler& sampler,
         const BatchLayout& layout, int64_t start_step = 0, int prefetch = 4);
  // Stops the thread, after the read in progress.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch; valid until the next call. An error of the source is rethrown here, after the
  // batches that precede it, and by every later call.
  const Batch& Next();

 private:
  void Run();
  int64_t TargetsOf(int64_t step, std::vector<int64_t>* starts) const;

  const std::shared_ptr<const TokenSource> source_;
  const Sampler sampler_;
  const int64_t start_step_;
  BatchLayout layout_;
  std::vector<Batch> slots_;  // a ring; batch i is in slot i % slots_.size()

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t filled_ = 0;    // batches that the thread has finished
  int64_t released_ = 0;  // batches that the consumer no longer uses
  int64_t taken_ = 0;     // batches that Next has returned
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace lockstep::data
