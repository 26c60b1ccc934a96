#include <cmath>
#include <vector>

#include "core/slots.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/reduce.h"
#include "kernels/reduce/reduce.h"

namespace lockstep::cpu {
namespace {

// Terms of a row that one task adds.
constexpr int64_t kRowBlock = 65536;
// Rows, and columns, of the tile that one task adds down its columns.
constexpr int64_t kTileRows = 256, kTileColumns = 256;

int64_t Blocks(int64_t n, int64_t block) { return std::max<int64_t>(1, (n + block - 1) / block); }

// Adds n vectors of `width`, `stride` apart, into the first, pairwise.
template <class A>
void AddTree(A* parts, int64_t n, int64_t stride, int64_t width) {
  while (n > 1) {
    const int64_t half = (n + 1) / 2;
    for (int64_t p = 0; p + half < n; ++p) {
      A* to = parts + p * stride;
      const A* from = parts + (p + half) * stride;
      for (int64_t i = 0; i < width; ++i) to[i] += from[i];
    }
    n = half;
  }
}

// parts[o][block] for inner = 1: sums along contiguous rows.
template <class T, class A>
void SumRows(const T* x, int64_t outer, int64_t reduced, int64_t blocks, A* parts) {
  const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, reduced));
  ParallelFor(outer * blocks, grain, [=](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const T* row = x + task / blocks * reduced;
      const int64_t from = task % blocks * kRowBlock;
      parts[task] = PairwiseSum<A>(from, std::min(reduced, from + kRowBlock),
                                   [row](int64_t i) { return Convert<A>(row[i]); });
    }
  });
}

// parts[o][block][inner]: sums down columns, in tiles.
template <class T, class A>
void SumColumns(const T* x, int64_t outer, int64_t reduced, int64_t inner, int64_t blocks,
                A* parts) {
  const int64_t tiles = Blocks(inner, kTileColumns);
  const int64_t tile_elements = std::min(reduced, kTileRows) * std::min(inner, kTileColumns);
  const int64_t grain =
      std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, tile_elements));
  ParallelFor(outer * blocks * tiles, grain, [=](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % tiles * kTileColumns;
      const int64_t part = task / tiles;  // o * blocks + block
      const int64_t row = part % blocks * kTileRows;
      const int64_t rows = std::min(reduced - row, kTileRows);
      const int64_t width = std::min(inner - column, kTileColumns);
      const T* in = x + (part / blocks * reduced + row) * inner + column;
      A sums[kTileColumns] = {};
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < width; ++i) sums[i] += Convert<A>(in[r * inner + i]);
      }
      std::copy(sums, sums + width, parts + part * inner + column);
    }
  });
}

template <class A>
void AddParts(std::vector<A>& parts, int64_t outer, int64_t blocks, int64_t inner) {
  if (blocks == 1) return;
  const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / (blocks * inner));
  ParallelFor(outer, grain, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      AddTree(parts.data() + o * blocks * inner, blocks, inner, inner);
    }
  });
}

void ReduceSumCpu(Stream, const Tensor& x, double scale, const Tensor& y, bool accumulate) {
  const int64_t outer = x.dim(0), reduced = x.dim(1), inner = x.dim(2);
  if (outer * inner == 0) return;
  DispatchFloat("sum", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Acc<T>;
    const int64_t blocks = Blocks(reduced, inner == 1 ? kRowBlock : kTileRows);
    std::vector<A> parts(static_cast<size_t>(outer * blocks * inner));
    if (inner == 1) {
      SumRows(x.data<T>(), outer, reduced, blocks, parts.data());
    } else {
      SumColumns(x.data<T>(), outer, reduced, inner, blocks, parts.data());
    }
    AddParts(parts, outer, blocks, inner);
    DispatchFloat("sum", y.dtype(), [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      To* out = y.data<To>();
      for (int64_t o = 0; o < outer; ++o) {
        for (int64_t i = 0; i < inner; ++i) {
          const A sum = parts[o * blocks * inner + i] * static_cast<A>(scale);
          To& to = out[o * inner + i];
          to = Convert<To>(accumulate ? Convert<A>(to) + sum : sum);
        }
      }
    });
  });
}

// Whether v replaces the maximum so far: the first of equal ones stays, and so does NaN.
template <class A>
bool Replaces(A v, A max) {
  return v > max || (v != v && max == max);
}

// The maxima of `width` columns, row by row.
template <class T>
void MaxColumns(const T* in, int64_t rows, int64_t stride, int64_t width, T* out, int64_t* at) {
  using A = Acc<T>;
  A best[kTileColumns];
  for (int64_t i = 0; i < width; ++i) {
    best[i] = Convert<A>(in[i]);
    at[i] = 0;
  }
  for (int64_t r = 1; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const A v = Convert<A>(in[r * stride + i]);
      const bool replaces = Replaces(v, best[i]);
      best[i] = replaces ? v : best[i];
      at[i] = replaces ? r : at[i];
    }
  }
  for (int64_t i = 0; i < width; ++i) out[i] = Convert<T>(best[i]);
}

void ReduceMaxCpu(Stream, const Tensor& x, const Tensor& y, const Tensor& index) {
  const int64_t reduced = x.dim(1), inner = x.dim(2);
  if (y.numel() == 0) return;
  DispatchFloat("max", x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* in = x.data<T>();
    T* out = y.data<T>();
    int64_t* at = index.data<int64_t>();
    const int64_t tiles = Blocks(inner, kTileColumns);
    const int64_t grain =
        std::max<int64_t>(1, kElementwiseGrain / (reduced * std::min(inner, kTileColumns)));
    ParallelFor(x.dim(0) * tiles, grain, [=](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t o = task / tiles, column = task % tiles * kTileColumns;
        MaxColumns(in + o * reduced * inner + column, reduced, inner,
                   std::min(inner - column, kTileColumns), out + o * inner + column,
                   at + o * inner + column);
      }
    });
  });
}

void ReduceMaxBackwardCpu(Stream stream, const Tensor& dy, const Tensor& index, const Tensor& dx,
                          bool accumulate) {
  if (!accumulate) fill_slot(stream, dx, 0);
  const int64_t reduced = dx.dim(1), inner = dx.dim(2);
  DispatchFloat("max", dx.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Acc<T>;
    const T* grad = dy.data<T>();
    const int64_t* at = index.data<int64_t>();
    T* out = dx.data<T>();
    ParallelFor(dy.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        T& to = out[(task / inner * reduced + at[task]) * inner + task % inner];
        to = Convert<T>(Convert<A>(to) + Convert<A>(grad[task]));
      }
    });
  });
}

LS_REGISTER(reduce_sum_slot, DeviceType::kCpu, ReduceSumCpu);
LS_REGISTER(reduce_max, DeviceType::kCpu, ReduceMaxCpu);
LS_REGISTER(reduce_max_backward, DeviceType::kCpu, ReduceMaxBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
