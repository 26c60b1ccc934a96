// Fills core's copy slot: copies between host and device, between devices, of views, and
// conversions. Core declares it (core/slots.h).
#include "core/cuda/pinned.h"
#include "core/slots.h"
#include "kernels/cuda/any_dtype.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/strided.h"

namespace lockstep::cuda {
namespace {

struct Identity {
  __device__ float operator()(float x) const { return x; }
};

// ---- Views of one dtype ----

// One unit per thread, with consecutive threads along the target's rows. A unit is an element, or
// as many neighbouring ones as both sides have side by side, up to 16 bytes. No shared memory.
template <class Unit>
__global__ void CopyStridedKernel(int64_t n, StridedDims<2> dims, const Unit* from, Unit* to) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[2];
  dims.Offsets(i, at);
  to[at[1]] = from[at[0]];
}

// Whether the walk can go by units of `bytes` instead of elements of `element` bytes.
bool CanWiden(const StridedDims<2>& dims, int64_t element, int64_t bytes, const void* from,
              const void* to) {
  if (dims.inner_step(0) != 1 || dims.inner_step(1) != 1) return false;
  bool can = dims.inner_size() * element % bytes == 0 &&
             reinterpret_cast<uintptr_t>(from) % bytes == 0 &&
             reinterpret_cast<uintptr_t>(to) % bytes == 0;
  for (int d = 0; d + 1 < dims.ndim; ++d) {
    for (const auto& step : dims.step) can = can && step[d] * element % bytes == 0;
  }
  return can;
}

template <class Unit>
void CopyUnits(Stream stream, const Tensor& from, const Tensor& to, StridedDims<2> dims) {
  const int64_t per_unit = static_cast<int64_t>(sizeof(Unit)) / SizeOf(to.dtype());
  if (per_unit > 1) {
    dims.size[dims.ndim - 1] /= per_unit;
    for (int d = 0; d + 1 < dims.ndim; ++d) {
      for (auto& step : dims.step) step[d] /= per_unit;
    }
  }
  const int64_t n = to.numel() / std::max<int64_t>(1, per_unit);
  LaunchThreads({"copy", from, to}, CopyStridedKernel<Unit>, n, stream, n, dims,
                Units<const Unit>(from), Units<Unit>(to));
}

void CopyStrided(Stream stream, const Tensor& from, const Tensor& to) {
  const StridedDims<2> dims(to.shape(), {from.strides(), to.strides()});
  const int64_t element = SizeOf(to.dtype());
  int64_t unit = 16;
  while (unit > element && !CanWiden(dims, element, unit, from.raw_data(), to.raw_data()))
    unit /= 2;
  DispatchWideUnit(unit,
                   [&]<class Unit>(TypeTag<Unit>) { CopyUnits<Unit>(stream, from, to, dims); });
}

// ---- Conversions ----

// Any dtypes and strides, one element per thread; no shared memory. The dtypes are arguments, not
// template parameters: a hundred kernels for what no training step does would be a poor bargain.
template <class Wide>
__global__ void ConvertStridedKernel(int64_t n, StridedDims<2> dims, DType from_dtype,
                                     const void* from, DType to_dtype, void* to) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[2];
  dims.Offsets(i, at);
  WriteAs(to_dtype, to, at[1], ReadAs<Wide>(from_dtype, from, at[0]));
}

bool IsNarrowFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

void CheckConverts(DType dtype) {
  LS_CHECK(dtype != DType::kF8E4M3 && dtype != DType::kF8E5M2, "copy does not convert to ", dtype,
           " on CUDA devices");
}

void ConvertOnDevice(Stream stream, const Tensor& from, const Tensor& to) {
  if (from.is_contiguous() && to.is_contiguous() && IsNarrowFloat(from.dtype()) &&
      IsNarrowFloat(to.dtype())) {
    DispatchFloat("copy", from.dtype(), [&]<class From>(TypeTag<From>) {
      const auto* source = Data<From>(from);
      DispatchFloat("copy", to.dtype(), [&]<class To>(TypeTag<To>) {
        Elementwise({"copy", from, to}, stream, to.numel(), false, Identity(), Data<To>(to),
                    source);
      });
    });
    return;
  }
  CheckConverts(to.dtype());
  // i64 does not fit into a double; an integer that becomes a float is rounded once.
  const auto kernel =
      IsFloating(from.dtype()) ? ConvertStridedKernel<double> : ConvertStridedKernel<int64_t>;
  LaunchThreads({"copy", from, to}, kernel, to.numel(), stream, to.numel(),
                StridedDims<2>(to.shape(), {from.strides(), to.strides()}), from.dtype(),
                from.raw_data(), to.dtype(), to.raw_data());
}

// ---- Which copy ----

// Orders the work submitted so far to `first` before what is submitted to `second` from now on.
void Order(Stream first, Stream second) {
  Event event(first.device);
  event.Record(first);
  event.Wait(second);
}

void CopyOnDevice(Stream stream, const Tensor& from, const Tensor& to) {
  if (from.dtype() != to.dtype()) return ConvertOnDevice(stream, from, to);
  if (!from.is_contiguous() || !to.is_contiguous()) return CopyStrided(stream, from, to);
  LS_CUDA(cudaSetDevice(stream.device.index));
  LS_CUDA(cudaMemcpyAsync(to.raw_data(), from.raw_data(), static_cast<size_t>(to.bytes()),
                          cudaMemcpyDeviceToDevice,
                          static_cast<cudaStream_t>(stream.handle.get())));
}

// Converts at the source, sends a dense tensor and spreads it at the destination, so that as few
// bytes as possible travel.
Tensor DenseAs(const Tensor& x, DType dtype) { return x.To(dtype).Contiguous(); }

void CopyBetweenDevices(Stream stream, const Tensor& from, const Tensor& to) {
  const Tensor sent = DenseAs(from, to.dtype());
  const Tensor arrived = to.is_contiguous() ? to : Tensor::EmptyLike(to);
  const Stream source = CurrentStream(from.device());
  Order(source, stream);
  LS_CUDA(cudaSetDevice(stream.device.index));
  LS_CUDA(cudaMemcpyPeerAsync(arrived.raw_data(), to.device().index, sent.raw_data(),
                              from.device().index, static_cast<size_t>(to.bytes()),
                              static_cast<cudaStream_t>(stream.handle.get())));
  // The source may be overwritten or freed by what its stream does next.
  Order(stream, source);
  if (!to.is_contiguous()) CopyStrided(stream, arrived, to);
}

void CopyCuda(Stream stream, const Tensor& from, const Tensor& to) {
  if (from.device() == to.device()) return CopyOnDevice(stream, from, to);
  if (from.device().is_cuda() && to.device().is_cuda()) return CopyBetweenDevices(stream, from, to);
  const Tensor sent = DenseAs(from.Detach(), to.dtype());
  const Tensor arrived = to.is_contiguous() ? to.Detach() : Tensor::EmptyLike(to);
  if (from.device().is_cpu()) {
    CopyFromHost(arrived.raw_data(), sent.raw_data(), to.bytes(), stream);
    if (!to.is_contiguous()) CopyStrided(stream, arrived, to);
  } else {
    CopyToHostAndWait(arrived.raw_data(), sent.raw_data(), to.bytes(), stream);
    if (!to.is_contiguous()) copy_slot(CurrentStream(kCpu), arrived, to);
  }
}

LS_REGISTER(copy_slot, DeviceType::kCuda, CopyCuda);

}  // namespace
}  // namespace lockstep::cuda
