#include "kernels/avg_pool2d/avg_pool2d.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/scratch.h"

namespace lockstep::cpu {
namespace {

// Planes that one thread takes at a time. Windows cover a plane about once; overlaps cost more.
int64_t PlaneGrain(const AveragedAxis& rows, const AveragedAxis& columns) {
  return GrainOf(rows.window.in * columns.window.in + rows.window.out * columns.window.out);
}

void AvgPool2dForwardCpu(Stream, const AveragedAxis& rows, const AveragedAxis& columns,
                         const Tensor& x, const Tensor& y) {
  if (y.numel() == 0) return;
  DispatchFloat("avg_pool2d", x.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const int64_t width = columns.window.in, in = rows.window.in * width;
    const int64_t out = rows.window.out * columns.window.out;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    ParallelForEach(y.numel() / out, PlaneGrain(rows, columns), [&](int64_t plane) {
      const T* image = from + plane * in;
      T* result = to + plane * out;
      for (int64_t p = 0; p < rows.window.out; ++p) {
        const AveragedAxis::Range down = rows.At(p);
        for (int64_t q = 0; q < columns.window.out; ++q) {
          const AveragedAxis::Range across = columns.At(q);
          A sum = 0;
          for (int64_t i = down.first; i < down.last; ++i) {
            const T* row = image + i * width + across.first;
            sum += SumOver<A>(across.last - across.first,
                              [=](int64_t j) { return Convert<A>(row[j]); });
          }
          *result++ = Convert<T>(sum / static_cast<A>(down.divisor * across.divisor));
        }
      }
    });
  });
}

void AvgPool2dBackwardCpu(Stream, const AveragedAxis& rows, const AveragedAxis& columns,
                          const Tensor& dy, const Tensor& dx, bool accumulate) {
  if (dx.numel() == 0) return;
  DispatchFloat("avg_pool2d", dy.dtype(), [&]<class T>(TypeTag<T>) {
    using A = Acc<T>;
    const int64_t width = columns.window.in, in = rows.window.in * width;
    const int64_t out = rows.window.out * columns.window.out;
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    ParallelFor(dx.numel() / in, PlaneGrain(rows, columns), [&](int64_t begin, int64_t end) {
      static thread_local Scratch<A> scratch;
      A* sums = scratch.Get(in);  // rounded once, however many windows share an element
      for (int64_t plane = begin; plane < end; ++plane) {
        std::fill_n(sums, in, A(0));
        const T* grad = from + plane * out;
        for (int64_t p = 0; p < rows.window.out; ++p) {
          const AveragedAxis::Range down = rows.At(p);
          for (int64_t q = 0; q < columns.window.out; ++q) {
            const AveragedAxis::Range across = columns.At(q);
            const A share = Convert<A>(*grad++) / static_cast<A>(down.divisor * across.divisor);
            for (int64_t i = down.first; i < down.last; ++i) {
              A* row = sums + i * width;
              for (int64_t j = across.first; j < across.last; ++j) row[j] += share;
            }
          }
        }
        WriteOrAdd(accumulate, 0, in, to + plane * in, [=](int64_t i) { return sums[i]; });
      }
    });
  });
}

LS_REGISTER(avg_pool2d_forward, DeviceType::kCpu, AvgPool2dForwardCpu);
LS_REGISTER(avg_pool2d_backward, DeviceType::kCpu, AvgPool2dBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
