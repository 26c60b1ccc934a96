#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/scratch.h"
#include "kernels/max_pool2d/max_pool2d.h"

namespace lockstep::cpu {
namespace {

// Planes that one thread takes at a time.
int64_t PlaneGrain(const WindowAxis& rows, const WindowAxis& columns) {
  return GrainOf(rows.in * columns.in + rows.out * columns.out * rows.kernel * columns.kernel);
}

// The taps [first, last) of output o's window that lie in the input.
struct Taps {
  int64_t first, last;
  Taps(const WindowAxis& axis, int64_t o) {
    const int64_t begin = axis.Begin(o);
    first = begin >= 0 ? 0 : DivideUp(-begin, axis.dilation);
    last = std::min(axis.kernel, DivideUp(axis.in - begin, axis.dilation));
  }
};

template <class T>
int64_t Argmax(const WindowAxis& rows, const WindowAxis& columns, const T* plane, int64_t p,
               int64_t q) {
  using A = Acc<T>;
  const Taps down(rows, p), across(columns, q);
  int64_t best = -1;
  A most = 0;
  for (int64_t i = down.first; i < down.last; ++i) {
    for (int64_t j = across.first; j < across.last; ++j) {
      const int64_t at = (rows.Begin(p) + i * rows.dilation) * columns.in + columns.Begin(q) +
                         j * columns.dilation;
      const A v = Convert<A>(plane[at]);
      if (best < 0 || v > most || v != v) {
        best = at;
        most = v;
        if (v != v) return best;  // NaN wins, the first of them
      }
    }
  }
  return best;
}

void MaxPool2dForwardCpu(Stream, const WindowAxis& rows, const WindowAxis& columns, const Tensor& x,
                         const Tensor& y, const Tensor& index) {
  if (y.numel() == 0) return;
  DispatchFloat("max_pool2d", x.dtype(), [&]<class T>(TypeTag<T>) {
    const int64_t out = rows.out * columns.out;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    int32_t* where = index.defined() ? index.data<int32_t>() : nullptr;
    ParallelForEach(y.numel() / out, PlaneGrain(rows, columns), [&](int64_t plane) {
      const T* in = from + plane * rows.in * columns.in;
      int64_t at = plane * out;
      for (int64_t p = 0; p < rows.out; ++p) {
        for (int64_t q = 0; q < columns.out; ++q, ++at) {
          const int64_t best = Argmax(rows, columns, in, p, q);
          to[at] = in[best];
          if (where) where[at] = static_cast<int32_t>(best);
        }
      }
    });
  });
}

void MaxPool2dBackwardCpu(Stream, const WindowAxis& rows, const WindowAxis& columns,
                          const Tensor& dy, const Tensor& index, const Tensor& dx,
                          bool accumulate) {
  if (dx.numel() == 0) return;
  DispatchFloat("max_pool2d", dy.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const int64_t in = rows.in * columns.in, out = rows.out * columns.out;
    const T* from = dy.data<T>();
    const int32_t* where = index.data<int32_t>();
    T* to = dx.data<T>();
    ParallelFor(dx.numel() / in, PlaneGrain(rows, columns), [&](int64_t begin, int64_t end) {
      static thread_local Scratch<A> scratch;
      A* sums = scratch.Get(in);  // rounded once, however many windows share an element
      for (int64_t plane = begin; plane < end; ++plane) {
        std::fill_n(sums, in, A(0));
        for (int64_t i = plane * out; i < (plane + 1) * out; ++i) {
          sums[where[i]] += Convert<A>(from[i]);
        }
        WriteOrAdd(accumulate, 0, in, to + plane * in, [=](int64_t i) { return sums[i]; });
      }
    });
  });
}

LS_REGISTER(max_pool2d_forward, DeviceType::kCpu, MaxPool2dForwardCpu);
LS_REGISTER(max_pool2d_backward, DeviceType::kCpu, MaxPool2dBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
