#include "nn/rotary.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace lockstep::nn {

Rotary::Rotary(int64_t head_size, const RotaryOptions& options)
    : head_size_(head_size), options_(options) {
  RotaryFrequencies(head_size, options);  // checks both
}

Tensor Rotary::operator()(Tensor x, int64_t rotated, int64_t first_position,
                          const Tensor& positions) {
  LS_CHECK(x.defined() && x.ndim() >= 2, "Rotary takes [B, T, N * D], got ", x.Describe());
  const DType wide = AccumulationDType(x.dtype());
  // Only the rows that it needs, of a table that may have grown when this is recomputed.
  const int64_t rows = first_position + x.dim(1);
  const Tensor table = Table(rows, wide, x.device()).Slice(0, 0, rows);
  return ops::RotaryEmbedding(std::move(x), table, rotated, first_position, positions);
}

Tensor Rotary::Table(int64_t positions, DType dtype, Device device) {
  const std::lock_guard lock(mutex_);
  const bool fits = table_.defined() && table_.dim(0) >= positions && table_.dtype() == dtype &&
                    table_.device() == device;
  if (!fits) {
    const auto rows = std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(positions, 64)));
    table_ = ops::RotaryTable(static_cast<int64_t>(rows), head_size_, options_, dtype, device);
  }
  return table_;
}

}  // namespace lockstep::nn
