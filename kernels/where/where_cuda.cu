#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/strided.h"
#include "kernels/where/where.h"

namespace lockstep::cuda {
namespace {

// One element per thread, consecutive threads along y; no shared memory. T: an unsigned integer of
// the elements' size. Only the elements of a and b that are taken are read.
template <class T>
__global__ void WhereKernel(int64_t n, StridedDims<3> dims, const bool* condition, const T* a,
                            const T* b, T* y) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[3];
  dims.Offsets(i, at);
  y[i] = condition[at[0]] ? a[at[1]] : b[at[2]];
}

template <class T>
void Choose(Stream stream, const Tensor& condition, const Tensor& a, const Tensor& b,
            const Tensor& y) {
  const int64_t n = y.numel();
  LaunchThreads({"where", condition, a, b}, WhereKernel<T>, n, stream, n,
                StridedDims<3>(y.shape(), {condition.strides(), a.strides(), b.strides()}),
                Data<bool>(condition), Units<const T>(a), Units<const T>(b), Units<T>(y));
}

void WhereCuda(Stream stream, const Tensor& condition, const Tensor& a, const Tensor& b,
               const Tensor& y) {
  DispatchUnit(SizeOf(y.dtype()),
               [&]<class T>(TypeTag<T>) { Choose<T>(stream, condition, a, b, y); });
}

LS_REGISTER(where_slot, DeviceType::kCuda, WhereCuda);

}  // namespace
}  // namespace lockstep::cuda
