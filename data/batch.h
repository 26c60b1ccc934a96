// Inputs and targets of one micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_source.h"

namespace lockstep::data {

// A target with this value does not count in the loss.
inline constexpr int32_t kIgnoreIndex = -1;

struct Batch {
  int64_t step = 0;
  int64_t micro_batch = 0;       // of the step
  int64_t rows = 0;              // B, samples
  int64_t cols = 0;              // T, block_size
  int64_t num_targets = 0;       // targets that are not kIgnoreIndex
  std::vector<int32_t> inputs;   // [B, T]
  std::vector<int32_t> targets;  // [B, T]: inputs shifted by one
};

// Makes `batch` the windows of block_size tokens that begin at `starts`. A window that ends with
// the stream (its last target would be the token after the last) is filled up with input 0 and
// target kIgnoreIndex, and so is one that starts at the last token or behind it. Allocates only
// where the batch has grown.
void ReadBatch(const TokenSource& source, std::span<const int64_t> starts, int64_t block_size,
               Batch* batch);

}  // namespace lockstep::data
