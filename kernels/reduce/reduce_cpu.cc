#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/slots.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/strided.h"
#include "kernels/reduce/reduce.h"

namespace lockstep::cpu {
namespace {

// Terms of a row that one task adds.
constexpr int64_t kRowBlock = 65536;
// Rows, and columns, of the tile that one task adds down its columns.
constexpr int64_t kTileRows = 256, kTileColumns = 256;

int64_t Blocks(int64_t n, int64_t block) { return std::max<int64_t>(1, DivideUp(n, block)); }

// ---- Sums and products ----

// Joins n vectors of `width`, `stride` apart, into the first, pairwise.
template <class A, class Join>
void JoinTree(A* parts, int64_t n, int64_t stride, int64_t width, const Join& join) {
  while (n > 1) {
    const int64_t half = (n + 1) / 2;
    for (int64_t p = 0; p + half < n; ++p) {
      A* to = parts + p * stride;
      const A* from = parts + (p + half) * stride;
      for (int64_t i = 0; i < width; ++i) to[i] = join(to[i], from[i]);
    }
    n = half;
  }
}

// What is left of [outer, reduced, inner] after a pass: [outer, blocks, inner].
template <class A>
struct Parts {
  std::vector<A> values;
  int64_t outer, blocks, inner;

  Parts(int64_t outer_size, int64_t block_count, int64_t inner_size)
      : values(static_cast<size_t>(outer_size * block_count * inner_size)),
        outer(outer_size),
        blocks(block_count),
        inner(inner_size) {}

  // Leaves one block.
  template <class Join>
  void JoinBlocks(const Join& join) {
    if (blocks == 1) return;
    const int64_t grain = GrainOf(blocks * inner);
    ParallelForEach(outer, grain, [&](int64_t o) {
      JoinTree(values.data() + o * blocks * inner, blocks, inner, inner, join);
    });
  }
  A Total(int64_t o, int64_t i) const { return values[o * blocks * inner + i]; }
};

// Sums of map(row, x) along contiguous rows.
template <class T, class A, class Map>
void SumRows(const T* x, int64_t reduced, const Map& map, Parts<A>& parts) {
  const int64_t grain = GrainOf(reduced);
  const int64_t blocks = parts.blocks;
  A* out = parts.values.data();
  ParallelForEach(parts.outer * blocks, grain, [=](int64_t task) {
    const int64_t o = task / blocks;
    const T* row = x + o * reduced;
    const int64_t from = task % blocks * kRowBlock;
    out[task] = PairwiseSum<A>(from, std::min(reduced, from + kRowBlock),
                               [=](int64_t i) { return map(o, Convert<A>(row[i])); });
  });
}

// Joins map(column, x) down columns, in tiles.
template <class T, class A, class Map, class Join>
void JoinColumns(const T* x, int64_t reduced, const Map& map, const Join& join, A identity,
                 Parts<A>& parts) {
  const int64_t blocks = parts.blocks, inner = parts.inner;
  const int64_t tiles = Blocks(inner, kTileColumns);
  const int64_t tile_elements = std::min(reduced, kTileRows) * std::min(inner, kTileColumns);
  const int64_t grain = GrainOf(tile_elements);
  A* out = parts.values.data();
  ParallelForEach(parts.outer * blocks * tiles, grain, [=](int64_t task) {
    const int64_t column = task % tiles * kTileColumns;
    const int64_t part = task / tiles;  // o * blocks + block
    const int64_t row = part % blocks * kTileRows;
    const int64_t rows = std::min(reduced - row, kTileRows);
    const int64_t width = std::min(inner - column, kTileColumns);
    const int64_t first = part / blocks * inner + column;  // of all columns
    const T* in = x + (part / blocks * reduced + row) * inner + column;
    A totals[kTileColumns];
    std::fill(totals, totals + width, identity);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        totals[i] = join(totals[i], map(first + i, Convert<A>(in[r * inner + i])));
      }
    }
    std::copy(totals, totals + width, out + part * inner + column);
  });
}

// Over the middle dimension of x. map(column, v) is what is added (std::plus) or multiplied.
template <class T, class Map, class Join, class A = Acc<T>>
Parts<A> FoldParts(const Tensor& x, const Map& map, const Join& join,
                   A identity = A(std::is_same_v<Join, std::plus<>> ? 0 : 1)) {
  constexpr bool kSum = std::is_same_v<Join, std::plus<>>;
  const int64_t outer = x.dim(0), reduced = x.dim(1), inner = x.dim(2);
  const bool rows = kSum && inner == 1;
  Parts<A> parts(outer, Blocks(reduced, rows ? kRowBlock : kTileRows), inner);
  if constexpr (kSum) {
    if (rows) SumRows(x.data<T>(), reduced, map, parts);
  }
  if (!rows) JoinColumns(x.data<T>(), reduced, map, join, identity, parts);
  parts.JoinBlocks(join);
  return parts;
}

void ReduceSumCpu(Stream, const Tensor& x, double scale, const Tensor& y, bool accumulate) {
  const int64_t outer = x.dim(0), inner = x.dim(2);
  if (outer * inner == 0) return;
  DispatchFloat("sum", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const Parts<A> parts = FoldParts<T>(
        x, [](int64_t, A v) { return v; }, std::plus<>());
    DispatchFloat("sum", y.dtype(), [&]<class To>(TypeTag<To>) {
      To* out = y.data<To>();
      ParallelFor(outer * inner, kElementwiseGrain, [&](int64_t begin, int64_t end) {
        for (int64_t column = begin; column < end; ++column) {
          const A sum = parts.Total(column / inner, column % inner) * static_cast<A>(scale);
          To& to = out[column];
          to = Convert<To>(accumulate ? Convert<A>(to) + sum : sum);
        }
      });
    });
  });
}

// Unsigned sums wrap around.
template <class T>
void SumIntegersAs(const Tensor& x, const Tensor& y) {
  const auto add = [](uint64_t a, uint64_t b) { return a + b; };
  const Parts<uint64_t> parts = FoldParts<T>(
      x, [](int64_t, uint64_t v) { return v; }, add, uint64_t{0});
  int64_t* out = y.data<int64_t>();
  const int64_t inner = x.dim(2);
  for (int64_t column = 0; column < y.numel(); ++column) {
    out[column] = static_cast<int64_t>(parts.Total(column / inner, column % inner));
  }
}

void SumIntegersCpu(Stream, const Tensor& x, const Tensor& y) {
  if (y.numel() == 0) return;
  DispatchInteger(x.dtype(), [&]<class T>(TypeTag<T>) { SumIntegersAs<T>(x, y); });
}

// ---- Folds ----

// Calls f(map, join): map(v, shift) is what is added or multiplied of an element.
template <class A, class F>
void DispatchFold(ReduceFold fold, const F& f) {
  switch (fold) {
    case ReduceFold::kVariance:
    case ReduceFold::kDeviation:
      return f([](A v, A shift) { return (v - shift) * (v - shift); }, std::plus<>());
    case ReduceFold::kAbsSum:
      return f([](A v, A) { return std::abs(v); }, std::plus<>());
    case ReduceFold::kNorm:
      return f([](A v, A) { return v * v; }, std::plus<>());
    case ReduceFold::kLogSumExp:
      return f([](A v, A shift) { return Exp(v - shift); }, std::plus<>());
    case ReduceFold::kProduct:
      return f([](A v, A) { return v; }, std::multiplies<>());
    case ReduceFold::kNonzeroProduct:
      return f([](A v, A) { return v == A(0) ? A(1) : v; }, std::multiplies<>());
    case ReduceFold::kZeros:
    case ReduceFold::kNoZeros:
      return f([](A v, A) { return v == A(0) ? A(1) : A(0); }, std::plus<>());
    case ReduceFold::kNonzeros:
      return f([](A v, A) { return v == A(0) ? A(0) : A(1); }, std::plus<>());
  }
}

template <class A>
A FinishFold(ReduceFold fold, A total, A shift, A scale) {
  switch (fold) {
    case ReduceFold::kVariance:
      return total * scale;
    case ReduceFold::kDeviation:
      return std::sqrt(total * scale);
    case ReduceFold::kNorm:
      return std::sqrt(total);
    case ReduceFold::kLogSumExp:
      return shift + Log(total);
    case ReduceFold::kNoZeros:
      return total == A(0) ? A(1) : A(0);
    default:
      return total;
  }
}

template <class T>
void FoldAs(ReduceFold fold, const Tensor& x, const Tensor& shift, double scale, const Tensor& y) {
  using A = Acc<T>;
  const int64_t outer = x.dim(0), inner = x.dim(2);
  std::vector<A> shifts(static_cast<size_t>(outer * inner));
  if (shift.defined()) {
    const A* given = shift.data<A>();
    for (size_t i = 0; i < shifts.size(); ++i) {
      shifts[i] = fold == ReduceFold::kLogSumExp && std::isinf(given[i]) ? A(0) : given[i];
    }
  }
  DispatchFold<A>(fold, [&](auto map, auto join) {
    const A* s = shifts.data();
    const Parts<A> parts = FoldParts<T>(
        x, [=](int64_t column, A v) { return map(v, s[column]); }, join);
    A* out = y.data<A>();
    ParallelFor(outer * inner, kElementwiseGrain, [&](int64_t begin, int64_t end) {
      for (int64_t column = begin; column < end; ++column) {
        out[column] = FinishFold(fold, parts.Total(column / inner, column % inner), s[column],
                                 static_cast<A>(scale));
      }
    });
  });
}

void ReduceFoldCpu(Stream, ReduceFold fold, const Tensor& x, const Tensor& shift, double scale,
                   const Tensor& y) {
  if (y.numel() == 0) return;
  if (x.dtype() == DType::kBool) return FoldAs<bool>(fold, x, shift, scale, y);
  DispatchFloat("reduce", x.dtype(),
                [&]<class T>(TypeTag<T>) { FoldAs<T>(fold, x, shift, scale, y); });
}

// Calls f(derivative): that by v, times dy.
template <class A, class F>
void DispatchFoldDerivative(ReduceFold fold, A scale, const F& f) {
  switch (fold) {
    case ReduceFold::kVariance:
      return f([=](A v, A a, A, A dy) { return A(2) * scale * dy * (v - a); });
    case ReduceFold::kDeviation:
      return f([=](A v, A a, A b, A dy) { return b == A(0) ? A(0) : scale * dy * ((v - a) / b); });
    case ReduceFold::kAbsSum:
      return f([](A v, A, A, A dy) { return v > A(0) ? dy : v < A(0) ? -dy : v * dy; });
    case ReduceFold::kNorm:
      return f([](A v, A, A b, A dy) { return b == A(0) ? A(0) : dy * (v / b); });
    case ReduceFold::kLogSumExp:
      return f([](A v, A, A b, A dy) {
        return dy * Exp(v - (b == -std::numeric_limits<A>::infinity() ? A(0) : b));
      });
    case ReduceFold::kProduct:
      return f([](A v, A a, A b, A dy) {
        return b == A(0) ? dy * (a / v) : b == A(1) && v == A(0) ? dy * a : A(0);
      });
    default:
      LS_INVARIANT(false, "fold ", static_cast<int>(fold), " has no derivative");
  }
}

void ReduceFoldBackwardCpu(Stream, ReduceFold fold, const Tensor& x, const Tensor& a,
                           const Tensor& b, double scale, const Tensor& dy, const Tensor& dx,
                           bool accumulate) {
  if (x.numel() == 0) return;
  // The strides of a column's numbers: no step along the reduced dimension.
  const Shape columns{x.dim(2), 0, 1};
  const StridedDims<2> dims(x.shape(), {x.strides(), columns});
  DispatchFloat("reduce", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const T* in = x.data<T>();
    const T* grad = dy.data<T>();
    const A* first = a.defined() ? a.data<A>() : nullptr;
    const A* second = b.defined() ? b.data<A>() : nullptr;
    T* out = dx.data<T>();
    DispatchFoldDerivative<A>(fold, static_cast<A>(scale), [&](auto derivative) {
      ForEachRun(x.numel(), dims, [=](const auto& at, int64_t n, const auto& steps) {
        for (int64_t i = 0; i < n; ++i) {
          const int64_t column = at[1] + i * steps[1];
          const A g = derivative(Convert<A>(in[at[0] + i]), first ? first[column] : A(0),
                                 second ? second[column] : A(0), Convert<A>(grad[column]));
          T& to = out[at[0] + i];
          to = Convert<T>(accumulate ? Convert<A>(to) + g : g);
        }
      });
    });
  });
}

// ---- Extremes ----

// Calls f(key) with what is compared of an element.
template <class F>
void DispatchKey(Extreme extreme, const F& f) {
  switch (extreme) {
    case Extreme::kMax:
      return f([](auto v) { return v; });
    case Extreme::kMin:
      return f([](auto v) {
        if constexpr (std::is_integral_v<decltype(v)>) {
          return ~v;  // -v overflows
        } else {
          return -v;
        }
      });
    case Extreme::kMaxAbs:
      return f([](auto v) { return std::abs(v); });
  }
}

// Whether v replaces the maximum so far: the first of equal ones stays, and so does NaN.
template <class A>
bool Replaces(A v, A max) {
  return v > max || (v != v && max == max);
}

// The elements of the largest keys in `width` columns, row by row.
template <class T, class Key>
void ExtremesOfColumns(const T* in, int64_t rows, int64_t stride, int64_t width, const Key& key,
                       T* out, int64_t* at) {
  using A = std::conditional_t<std::is_integral_v<T>, T, Acc<T>>;
  A best[kTileColumns];
  for (int64_t i = 0; i < width; ++i) {
    best[i] = key(Convert<A>(in[i]));
    at[i] = 0;
  }
  for (int64_t r = 1; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const A v = key(Convert<A>(in[r * stride + i]));
      const bool replaces = Replaces(v, best[i]);
      best[i] = replaces ? v : best[i];
      at[i] = replaces ? r : at[i];
    }
  }
  for (int64_t i = 0; i < width; ++i) out[i] = in[at[i] * stride + i];
}

void ReduceExtremeCpu(Stream, Extreme extreme, const Tensor& x, const Tensor& y,
                      const Tensor& index) {
  const int64_t reduced = x.dim(1), inner = x.dim(2);
  if (y.numel() == 0) return;
  const auto run = [&]<class T>(TypeTag<T>) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    int64_t* at = index.data<int64_t>();
    const int64_t tiles = Blocks(inner, kTileColumns);
    const int64_t grain = GrainOf(reduced * std::min(inner, kTileColumns));
    DispatchKey(extreme, [&](auto key) {
      ParallelForEach(x.dim(0) * tiles, grain, [=](int64_t task) {
        const int64_t o = task / tiles, column = task % tiles * kTileColumns;
        ExtremesOfColumns(in + o * reduced * inner + column, reduced, inner,
                          std::min(inner - column, kTileColumns), key, out + o * inner + column,
                          at + o * inner + column);
      });
    });
  };
  if (x.dtype() == DType::kI64) return run(TypeTag<int64_t>());
  DispatchFloat("reduce", x.dtype(), run);
}

void ReduceExtremeBackwardCpu(Stream stream, const Tensor& dy, const Tensor& index,
                              const Tensor& dx, bool accumulate) {
  if (!accumulate) fill_slot(stream, dx, 0);
  const int64_t reduced = dx.dim(1), inner = dx.dim(2);
  DispatchFloat("reduce", dx.dtype(), [&]<class T>(TypeTag<T>) {
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

LS_REGISTER(sum_integers, DeviceType::kCpu, SumIntegersCpu);
LS_REGISTER(reduce_sum_slot, DeviceType::kCpu, ReduceSumCpu);
LS_REGISTER(reduce_fold, DeviceType::kCpu, ReduceFoldCpu);
LS_REGISTER(reduce_fold_backward, DeviceType::kCpu, ReduceFoldBackwardCpu);
LS_REGISTER(reduce_extreme, DeviceType::kCpu, ReduceExtremeCpu);
LS_REGISTER(reduce_extreme_backward, DeviceType::kCpu, ReduceExtremeBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
