// Which rows are for training, and which are held out for validation.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

// Numbers of rows, both in the order of the rows.
struct RowSplit {
  std::vector<int64_t> train, val;
};

// Holds out round(val_fraction x rows) of the rows, but at least one and not all of them, at
// random: files are often sorted. Which ones depends only on `rows` and val_fraction, so runs with
// other seeds are validated on the same rows. `val` is empty if val_fraction is 0, or if there are
// fewer than 2 rows. 0 <= val_fraction < 1.
RowSplit SplitRows(int64_t rows, double val_fraction);

}  // namespace lockstep::data
