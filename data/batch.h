// Inputs and targets of one micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_source.h"

namespace lockstep::data {

// Targets with this value do not contribute to the loss.
inline constexpr int32_t kIgnoreIndex = -1;

struct Batch {
  int64_t step = 0;
  int64_t micro_batch = 0;       // its number within the step
  int64_t rows = 0;              // B, samples
  int64_t cols = 0;              // T, block_size
  int64_t num_targets = 0;       // targets that are not kIgnoreIndex
  int64_t step_targets = 0;      // the same of all micro-batches of the step, on all ranks
  std::vector<int32_t> inputs;   // [B, T]
  std::vector<int32_t> targets;  // [B, T]: inputs shifted by one
  // [B, T]: for each token the column at which its document begins in this window, for attention
  // that stays within documents. Empty: each row is one document.
  std::vector<int32_t> first_key;
};

// Fills `batch` with the windows of block_size tokens that begin at `starts`. Windows that reach
// the end of the stream, where targets are missing, are padded with input 0 and target
// kIgnoreIndex, even those that start at or beyond the last token. Targets that the model is not to
// learn become kIgnoreIndex as well. The caller sets step and what follows from it. With
// `document_mask` it also fills first_key, for which the source must know its documents; targets
// stay the same: the target of a document's last token is the first of the next one. Allocates only
// if the batch grows.
void ReadBatch(const TokenSource& source, std::span<const int64_t> starts, int64_t block_size,
               Batch* batch, bool document_mask = false);

}  // namespace lockstep::data
