// The batches over which a loss is evaluated.
#pragma once

#include <cstdint>
#include <memory>

#include "data/batch.h"
#include "data/token_source.h"

namespace lockstep::data {

// Consecutive windows of block_size tokens over a whole stream. A shorter last window and an
// incomplete last batch are padded with ignored targets, so that every batch has the same shape and
// every token but the first is a target exactly once, unless the model is not to learn it: the mean
// over all targets is the exact loss.
class EvalBatches {
 public:
  // max_batches > 0 keeps that many batches, spread evenly over the stream; 0 keeps all.
  // With document_mask batches have first_key. Throws ArgumentError for fewer than 2 tokens, and
  // where document_mask needs documents that the source does not know.
  EvalBatches(std::shared_ptr<const TokenSource> source, int64_t block_size, int64_t batch_size,
              int64_t max_batches = 0, bool document_mask = false);

  int64_t size() const { return size_; }
  // Whether these are all batches of the stream.
  bool has_all() const { return size_ == all_batches_; }
  // The number of targets in all batches together.
  int64_t num_targets() const { return num_targets_; }

  // Reads batch `index`, 0 <= index < size(), in any order; batch->step is the index. Ranks can
  // divide the batches among themselves and add up their sums of losses.
  void Read(int64_t index, Batch* batch) const;

 private:
  // The batch's position among those of the whole stream.
  int64_t Position(int64_t index) const;

  std::shared_ptr<const TokenSource> source_;
  int64_t block_size_;
  int64_t batch_size_;
  int64_t all_batches_;
  int64_t size_;
  int64_t num_targets_ = 0;
  bool document_mask_;
};

}  // namespace lockstep::data
