#include "data/conversations/split_rows.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/permutation.h"

namespace lockstep::data {

RowSplit SplitRows(int64_t rows, double val_fraction) {
  LS_CHECK(rows >= 0 && val_fraction >= 0 && val_fraction < 1, "cannot hold out ", val_fraction,
           " of ", rows, " rows: expected 0 <= val_fraction < 1");
  std::vector<bool> held_out(static_cast<size_t>(rows));
  if (val_fraction > 0 && rows >= 2) {
    const int64_t wanted = std::llround(val_fraction * static_cast<double>(rows));
    const Permutation permutation(/*seed=*/0, /*stream=*/0, rows);
    for (int64_t i = 0; i < std::clamp<int64_t>(wanted, 1, rows - 1); ++i) {
      held_out[static_cast<size_t>(permutation(i))] = true;
    }
  }
  RowSplit split;
  for (int64_t row = 0; row < rows; ++row) {
    (held_out[static_cast<size_t>(row)] ? split.val : split.train).push_back(row);
  }
  return split;
}

}  // namespace lockstep::data
