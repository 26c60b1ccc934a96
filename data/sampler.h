// Chooses each sample's tokens: a pure function of (seed, index), so that any step can be reached
// directly, with any number of ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "data/mixture.h"

namespace lockstep::data {

enum class Order {
  kShuffled,    // every window once per epoch, in a new random order each time
  kRandom,      // as in nanoGPT: independent, uniformly distributed offsets
  kSequential,  // every window once per epoch, in the stream's order
};

// "shuffled", "random", "sequential"; anything else is an InputError.
Order ParseOrder(std::string_view name);
std::string_view Name(Order order);

// The samples of a step. Sample indices count from 0 over the whole run: micro-batch m of step s
// has the batch_size samples from FirstSample(s, m) on, whichever rank computes
// it.
struct BatchLayout {
  int64_t batch_size = 1;     // samples per micro-batch
  int64_t micro_batches = 1;  // per step, on all ranks together
  // Which micro-batches of each step are wanted, in which order; if empty, all of them in order. It
  // affects when a sample is read, never which samples a micro-batch has.
  std::vector<int64_t> micro_order = {};
  bool document_mask = false;  // whether batches say where documents begin: Batch::first_key
  // For a run whose first steps had another size: how many more samples these had in all.
  int64_t samples_more = 0;

  // Throws ArgumentError unless the sizes are >= 1 and micro_order names existing micro-batches
  // without repetition.
  void Check() const;
  int64_t FirstSample(int64_t step, int64_t micro_batch) const {
    return samples_more + (step * micro_batches + micro_batch) * batch_size;
  }
  int64_t SamplesPerStep() const { return micro_batches * batch_size; }
};

// A source of a mixture: a range of the stream, in which the sources follow each other.
struct MixtureStream {
  int64_t num_tokens = 0;
  int64_t weight = 1;  // as in MixtureSchedule
};

// A window is block_size tokens and, as targets, the same range shifted by one. The stream has
// (num_tokens - 1) / block_size consecutive windows.
class Sampler {
 public:
  // Throws ArgumentError unless there is at least one window.
  Sampler(Order order, uint64_t seed, int64_t num_tokens, int64_t block_size);

  // A mixture: MixtureSchedule says which source a sample comes from, and in its source it is what
  // it would be if there were no other, with its own epochs and, after the first source, its own
  // random numbers. A mixture of one source is that source. Throws ArgumentError also unless each
  // source has a window, and as MixtureSchedule does.
  Sampler(Order order, uint64_t seed, std::span<const MixtureStream> mixture, int64_t block_size);

  // The first token of sample `index` >= 0.
  int64_t WindowStart(int64_t index) const;

  // The same for the samples index, index + 1, ...
  void WindowStarts(int64_t index, std::span<int64_t> starts) const;

  // The number of samples after which every token has been seen once (on average, for kRandom); of
  // a mixture, the windows of all sources together.
  int64_t windows_per_epoch() const { return windows_; }
  // How many epochs of each source the samples 0 to count - 1 make.
  std::vector<double> EpochsOf(int64_t count) const;
  int64_t block_size() const { return block_size_; }
  int64_t num_tokens() const { return num_tokens_; }
  Order order() const { return order_; }

 private:
  struct Source {
    uint64_t seed = 0;
    int64_t begin = 0, num_tokens = 0, windows = 0;
  };
  void AddSource(uint64_t seed, int64_t num_tokens);
  void WindowStartsIn(const Source& source, int64_t index, std::span<int64_t> starts) const;

  Order order_;
  int64_t block_size_;
  int64_t num_tokens_ = 0;
  int64_t windows_ = 0;
  std::vector<Source> sources_;
  std::shared_ptr<const MixtureSchedule> schedule_;  // null for a single source
};

}  // namespace lockstep::data
