#include "data/batch.h"

#include <algorithm>

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
    batch->num_targets += n;
    if (!document_mask) continue;
    const auto first_key = std::span(batch->first_key).subspan(row * block_size, block_size);
    source.ReadDocumentStarts(n == 0 ? 0 : starts[row], first_key.first(n));
    std::ranges::fill(first_key.subspan(n), 0);
    ToFirstKeys(first_key);
  }
}

}  // namespace lockstep::data
