// Which rows of a group a block multiplies.
#pragma once

#include "kernels/cuda/grid.cuh"

namespace lockstep::cuda {

// Group e gets the tiles of kTile rows from offsets[e] / kTile + e on, which are as many as it has
// rows for or one more: so no count of tiles need be added up, and all groups together have at most
// rows / kTile + groups.
template <int kTile>
struct RowTile {
  int group = 0;
  int64_t first = 0, rows = 0;  // of x; no rows: a tile to spare

  __device__ RowTile(const int* offsets, int groups, int64_t tile) {
    int end = groups;  // the last group that begins at or before the tile is in [group, end)
    while (end - group > 1) {
      const int middle = (group + end) / 2;
      if (offsets[middle] / kTile + middle <= tile) {
        group = middle;
      } else {
        end = middle;
      }
    }
    first = offsets[group] + (tile - offsets[group] / kTile - group) * kTile;
    rows = Min<int64_t>(offsets[group + 1] - first, kTile);
  }
};

// As many as there can be.
inline int64_t RowTiles(int64_t rows, int64_t groups, int tile) { return rows / tile + groups; }

}  // namespace lockstep::cuda
