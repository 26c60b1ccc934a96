#include "data/batch.h"

#include <algorithm>
#include <array>

namespace lockstep::data {
namespace {

// Where documents begin, 1 or 0 -> the column at which that of each token does.
void ToFirstKeys(std::span<int32_t> row) {
  int32_t first = 0;
  for (int32_t col = 0; col < std::ssize(row); ++col) {
    if (row[col] != 0) first = col;
    row[col] = first;
  }
}

// Masks the targets (the tokens from `first` on) that are not learnt; returns how many remain.
int64_t Mask(const TokenSource& source, int64_t first, std::span<int32_t> targets) {
  std::array<int32_t, 1024> learnt;
  int64_t count = 0;
  for (size_t at = 0; at < targets.size(); at += learnt.size()) {
    const auto some = targets.subspan(at, std::min(learnt.size(), targets.size() - at));
    source.ReadLossMask(first + static_cast<int64_t>(at), std::span(learnt).first(some.size()));
    for (size_t i = 0; i < some.size(); ++i) {
      if (learnt[i] == 0) some[i] = kIgnoreIndex;
      count += learnt[i];
    }
  }
  return count;
}

}  // namespace

void ReadBatch(const TokenSource& source, std::span<const int64_t> starts, int64_t block_size,
               Batch* batch, bool document_mask) {
  batch->rows = static_cast<int64_t>(starts.size());
  batch->cols = block_size;
  batch->num_targets = 0;
  batch->inputs.resize(batch->rows * block_size);
  batch->targets.resize(batch->rows * block_size);
  batch->first_key.resize(document_mask ? batch->rows * block_size : 0);
  for (int64_t row = 0; row < batch->rows; ++row) {
    const auto inputs = std::span(batch->inputs).subspan(row * block_size, block_size);
    const auto targets = std::span(batch->targets).subspan(row * block_size, block_size);
    const int64_t n = std::clamp<int64_t>(source.size() - 1 - starts[row], 0, block_size);
    source.Read(n == 0 ? 0 : starts[row], inputs.first(n));
    if (n > 0) {
      std::copy(inputs.begin() + 1, inputs.begin() + n, targets.begin());
      targets[n - 1] = source.TokenAt(starts[row] + n);
    }
    std::ranges::fill(inputs.subspan(n), 0);
    std::ranges::fill(targets.subspan(n), kIgnoreIndex);
    batch->num_targets +=
        source.has_loss_mask() ? Mask(source, starts[row] + 1, targets.first(n)) : n;
    if (!document_mask) continue;
    const auto first_key = std::span(batch->first_key).subspan(row * block_size, block_size);
    source.ReadDocumentStarts(n == 0 ? 0 : starts[row], first_key.first(n));
    std::ranges::fill(first_key.subspan(n), 0);
    ToFirstKeys(first_key);
  }
}

}  // namespace lockstep::data
