#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/cumsum/cumsum.h"

namespace lockstep::cpu {
namespace {

// Terms that are added one after the other: a sum is that of whole blocks plus that of the last
// block so far, so the error grows with the number of blocks instead of that of terms.
constexpr int64_t kBlock = 256;
constexpr int64_t kTileColumns = 64;  // columns of a task

// `width` columns, row by row from `in` on; the next row is `step` elements further.
template <class T>
void ScanColumns(const T* in, int64_t rows, int64_t step, int64_t width, bool accumulate, T* out) {
  // Unsigned integers wrap around.
  using A = std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, Acc<T>>;
  A before[kTileColumns] = {}, block[kTileColumns] = {};
  for (int64_t r = 0; r < rows; ++r) {
    if (r % kBlock == 0) {
      for (int64_t i = 0; i < width; ++i) {
        before[i] += block[i];
        block[i] = 0;
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      block[i] += Convert<A>(in[r * step + i]);
      const A sum = before[i] + block[i];
      T& to = out[r * step + i];
      to = Convert<T>(accumulate ? Convert<A>(to) + sum : sum);
    }
  }
}

void CumSumCpu(Stream, const Tensor& x, bool reverse, const Tensor& y, bool accumulate) {
  if (x.numel() == 0) return;
  const int64_t rows = x.dim(1), inner = x.dim(2);
  const auto run = [&]<class T>(TypeTag<T>) {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    const int64_t tiles = DivideUp(inner, kTileColumns);
    const int64_t grain = GrainOf(rows * std::min(inner, kTileColumns));
    const int64_t first = reverse ? (rows - 1) * inner : 0, step = reverse ? -inner : inner;
    ParallelForEach(x.dim(0) * tiles, grain, [=](int64_t task) {
      const int64_t column = task % tiles * kTileColumns;
      const int64_t at = task / tiles * rows * inner + first + column;
      ScanColumns(in + at, rows, step, std::min(inner - column, kTileColumns), accumulate,
                  out + at);
    });
  };
  if (x.dtype() == DType::kI64) return run(TypeTag<int64_t>());
  DispatchFloat("cumsum", x.dtype(), run);
}

LS_REGISTER(cum_sum, DeviceType::kCpu, CumSumCpu);

}  // namespace
}  // namespace lockstep::cpu
