// Which tokens a sample is made of: a pure function of (seed, index), so that any step can be
// reached at once, at any number of ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::data {

enum class Order {
  kShuffled,    // every window once an epoch, in an order that each epoch draws anew
  kRandom,      // nanoGPT's: every offset is as likely as any other, drawn independently
  kSequential,  // every window once an epoch, as they stand
};

// "shuffled", "random", "sequential"; anything else is an InputError.
Order ParseOrder(std::string_view name);
std::string_view Name(Order order);

// How the samples of a step are shared out. Sample indices count from 0 over the whole run:
// micro-step a of step s gives rank r of `world` the batch_size samples from ((s * accum + a) *
// world + r) * batch_size on. So a step's samples do not depend on how accum * world is factored.
struct BatchLayout {
  int64_t batch_size = 1;  // samples per rank and micro-step
  int64_t accum = 1;       // micro-steps per step
  int64_t world = 1;       // data-parallel ranks
  int64_t rank = 0;
  // The order in which a step's micro-steps come, a permutation of 0 to accum - 1; empty: as they
  // stand. It changes when a sample comes, never which samples a micro-step has.
  std::vector<int64_t> micro_order = {};

  // Throws ArgumentError unless all are >= 1, 0 <= rank < world, and micro_order fits.
  void Check() const;
  int64_t FirstSample(int64_t step, int64_t micro_step) const {
    return ((step * accum + micro_step) * world + rank) * batch_size;
  }
  int64_t SamplesPerStep() const { return accum * world * batch_size; }
};

// A window is block_size tokens and, as targets, the same range shifted by one. Windows are the
// consecutive runs of block_size tokens of the stream, (num_tokens - 1) / block_size of them.
class Sampler {
 public:
  // Throws ArgumentError unless there is a window.
  Sampler(Order order, uint64_t seed, int64_t num_tokens, int64_t block_size);

  // The first token of sample `index` >= 0.
  int64_t WindowStart(int64_t index) const;

  // The same for the samples index, index + 1, ...
  void WindowStarts(int64_t index, std::span<int64_t> starts) const;

  // Samples after which every token has been seen once (on average, for kRandom).
  int64_t windows_per_epoch() const { return windows_; }
  int64_t block_size() const { return block_size_; }
  int64_t num_tokens() const { return num_tokens_; }
  Order order() const { return order_; }

 private:
  Order order_;
  uint64_t seed_;
  int64_t num_tokens_;
  int64_t block_size_;
  int64_t windows_;
};

}  // namespace lockstep::data
