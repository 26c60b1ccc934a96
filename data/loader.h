// Training batches in order, read ahead by a background thread.
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

// Gives the micro-batches 0, 1, ... of start_step, then those of start_step + 1, and so on, or
// those of each step that are in the layout's micro_order. Their contents depend on the source, the
// sampler and the layout alone: a loader that starts at step s gives what one from step 0 gives
// from there on. Allocates nothing after its construction. For one consumer
// thread.
class Loader {
 public:
  // Throws ArgumentError if the sampler was made for another number of tokens than the source has.
  Loader(std::shared_ptr<const TokenSource> source, const Sampler& sampler,
         const BatchLayout& layout, int64_t start_step = 0, int prefetch = 4);
  // Stops the thread; a read under way is waited for.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch; valid until the next call. An error of the source is rethrown here, after the
  // batches before it, and again by every later call.
  const Batch& Next();

 private:
  void Run();

  const std::shared_ptr<const TokenSource> source_;
  const Sampler sampler_;
  const int64_t start_step_;
  BatchLayout layout_;
  std::vector<Batch> slots_;  // a ring; batch i is in slot i % slots_.size()

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t filled_ = 0;    // batches that the thread has finished
  int64_t released_ = 0;  // batches that the consumer no longer uses
  int64_t taken_ = 0;     // batches that Next has given out
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace lockstep::data
