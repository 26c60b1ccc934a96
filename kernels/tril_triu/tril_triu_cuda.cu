#include "kernels/cuda/grid.cuh"
#include "kernels/dispatch.h"
#include "kernels/tril_triu/tril_triu.h"

namespace lockstep::cuda {
namespace {

// One element per thread; no shared memory. Zero is the same bits in every dtype.
template <class Unit>
__global__ void TriangleKernel(bool upper, int64_t diagonal, int64_t elements, int64_t rows,
                               int64_t columns, const Unit* x, Unit* y) {
  const int64_t i = GlobalThread();
  if (i >= elements) return;
  const int64_t row = i / columns, edge = row % rows + diagonal, column = i - row * columns;
  y[i] = (upper ? column >= edge : column <= edge) ? x[i] : Unit(0);
}

void TriangleCuda(Stream stream, bool upper, int64_t diagonal, const Tensor& x, const Tensor& y) {
  DispatchUnit(SizeOf(x.dtype()), [&]<class Unit>(TypeTag<Unit>) {
    LaunchThreads({"triangle", x}, TriangleKernel<Unit>, x.numel(), stream, upper, diagonal,
                  x.numel(), x.dim(1), x.dim(2), Units<Unit>(x), Units<Unit>(y));
  });
}

LS_REGISTER(triangle_slot, DeviceType::kCuda, TriangleCuda);

}  // namespace
}  // namespace lockstep::cuda
