#include "kernels/compare/compare.h"
#include "kernels/cuda/any_dtype.cuh"
#include "kernels/cuda/grid.cuh"
#include "kernels/strided.h"

namespace lockstep::cuda {
namespace {

template <class Wide>
__device__ inline bool Holds(CompareOp op, Wide a, Wide b) {
  switch (op) {
    case CompareOp::kEqual:
      return a == b;
    case CompareOp::kNotEqual:
      return a != b;
    case CompareOp::kLess:
      return a < b;
    case CompareOp::kLessEqual:
      return a <= b;
    case CompareOp::kAnd:
      return a != Wide(0) && b != Wide(0);
    case CompareOp::kOr:
      return a != Wide(0) || b != Wide(0);
    case CompareOp::kFinite:
      return a - a == Wide(0);
  }
  return false;
}

// One element per thread, consecutive threads along y; no shared memory. Operation and dtype are
// arguments, and Wide has all values of the dtype: three kernels instead of some eighty, which the
// memory's speed hides.
template <class Wide>
__global__ void CompareKernel(int64_t n, StridedDims<2> dims, CompareOp op, DType dtype,
                              const void* a, const void* b, bool* y) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[2];
  dims.Offsets(i, at);
  y[i] = Holds(op, ReadAs<Wide>(dtype, a, at[0]), ReadAs<Wide>(dtype, b, at[1]));
}

void CompareCuda(Stream stream, CompareOp op, const Tensor& a, const Tensor& b, const Tensor& y) {
  const DType dtype = a.dtype();
  const auto kernel = dtype == DType::kF64 ? CompareKernel<double>
                      : IsFloating(dtype)  ? CompareKernel<float>
                                           : CompareKernel<int64_t>;
  const int64_t n = y.numel();
  LaunchThreads({"compare", a, b}, kernel, n, stream, n,
                StridedDims<2>(y.shape(), {a.strides(), b.strides()}), op, dtype, a.raw_data(),
                b.raw_data(), Data<bool>(y));
}

LS_REGISTER(compare_slot, DeviceType::kCuda, CompareCuda);

}  // namespace
}  // namespace lockstep::cuda
