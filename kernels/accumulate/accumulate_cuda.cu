// Fills core's accumulate slot: to += from, for gradients.
#include "core/slots.h"
#include "kernels/cuda/any_dtype.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/strided.h"

namespace lockstep::cuda {
namespace {

struct Identity {
  __device__ float operator()(float x) const { return x; }
};

// One element per thread; every element of `to` is written by one thread. No shared memory.
template <class From, class To>
__global__ void AccumulateStridedKernel(int64_t n, StridedDims<2> dims, const From* from, To* to) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[2];
  dims.Offsets(i, at);
  to[at[1]] = Convert<To>(ToFloat(to[at[1]]) + ToFloat(from[at[0]]));
}

template <class From, class To>
void Accumulate(Stream stream, const Tensor& from, const Tensor& to) {
  const From* source = Data<From>(from);
  if (from.is_contiguous() && to.is_contiguous()) {
    Elementwise({"accumulate", from, to}, stream, to.numel(), true, Identity(), Data<To>(to),
                source);
    return;
  }
  const StridedDims<2> dims(to.shape(), {from.strides(), to.strides()});
  LaunchThreads({"accumulate", from, to}, AccumulateStridedKernel<From, To>, to.numel(), stream,
                to.numel(), dims, source, Data<To>(to));
}

// Same as AccumulateStridedKernel, but computed in f64: for gradients of casts to f64.
__global__ void AccumulateWideKernel(int64_t n, StridedDims<2> dims, DType from_dtype,
                                     const void* from, DType to_dtype, void* to) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[2];
  dims.Offsets(i, at);
  WriteAs(to_dtype, to, at[1],
          ReadAs<double>(to_dtype, to, at[1]) + ReadAs<double>(from_dtype, from, at[0]));
}

void AccumulateCuda(Stream stream, const Tensor& from, const Tensor& to) {
  LS_CHECK(IsFloating(from.dtype()) && IsFloating(to.dtype()), "accumulate adds floats, not ",
           from.dtype(), " to ", to.dtype());
  if (from.dtype() == DType::kF64 || to.dtype() == DType::kF64) {
    LaunchThreads({"accumulate", from, to}, AccumulateWideKernel, to.numel(), stream, to.numel(),
                  StridedDims<2>(to.shape(), {from.strides(), to.strides()}), from.dtype(),
                  from.raw_data(), to.dtype(), to.raw_data());
    return;
  }
  DispatchFloat("accumulate", from.dtype(), [&]<class From>(TypeTag<From>) {
    DispatchFloat("accumulate", to.dtype(),
                  [&]<class To>(TypeTag<To>) { Accumulate<From, To>(stream, from, to); });
  });
}

LS_REGISTER(accumulate_slot, DeviceType::kCuda, AccumulateCuda);

}  // namespace
}  // namespace lockstep::cuda
