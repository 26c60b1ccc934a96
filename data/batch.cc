#include "data/batch.h"

#include <algorithm>

namespace lockstep::data {

void ReadBatch(const TokenSource& source, std::span<const int64_t> starts, int64_t block_size,
               Batch* batch) {
  batch->rows = static_cast<int64_t>(starts.size());
  batch->cols = block_size;
  batch->num_targets = 0;
  batch->inputs.resize(batch->rows * block_size);
  batch->targets.resize(batch->rows * block_size);
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
  }
}

}  // namespace lockstep::data
