// Fills core's fill slot: every element becomes a value.
#include <cstring>

#include "core/slots.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/strided.h"

namespace lockstep::cuda {
namespace {

// The value's bits in an unsigned integer of the element's size.
template <class Bits>
Bits BitsOf(DType dtype, double value) {
  Bits bits{};
  cpu::DispatchAll("fill", dtype, [&]<class T>(TypeTag<T>) {
    const auto v = cpu::Convert<T>(value);
    LS_INVARIANT(sizeof(v) == sizeof(bits), dtype);
    std::memcpy(&bits, &v, sizeof(bits));
  });
  return bits;
}

// One 16-byte pack per thread; no shared memory.
template <class Bits>
__global__ void FillKernel(int64_t n, bool packed, Bits value, Bits* x) {
  constexpr int N = kPackSize<Bits>;
  const int64_t begin = GlobalThread() * N;
  if (begin >= n) return;
  Packed<Bits> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack[i] = value;
  const int count = CountWithin<N>(begin, n);
  if (packed && count == N) {
    Store(x + begin, pack);
  } else {
    StoreSome(x + begin, pack, count);
  }
}

// One element per thread; no shared memory.
template <class Bits>
__global__ void FillStridedKernel(int64_t n, StridedDims<1> dims, Bits value, Bits* x) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  int64_t at[1];
  dims.Offsets(i, at);
  x[at[0]] = value;
}

template <class Bits>
void Fill(Stream stream, const Tensor& x, double value) {
  const Bits bits = BitsOf<Bits>(x.dtype(), value);
  Bits* data = Units<Bits>(x);
  const int64_t n = x.numel();
  if (x.is_contiguous()) {
    LaunchThreads({"fill", x}, FillKernel<Bits>, DivideUp(n, kPackSize<Bits>), stream, n,
                  IsAligned16(data), bits, data);
  } else {
    LaunchThreads({"fill", x}, FillStridedKernel<Bits>, n, stream, n,
                  StridedDims<1>(x.shape(), {x.strides()}), bits, data);
  }
}

void FillCuda(Stream stream, const Tensor& x, double value) {
  DispatchUnit(SizeOf(x.dtype()), [&]<class Bits>(TypeTag<Bits>) { Fill<Bits>(stream, x, value); });
}

LS_REGISTER(fill_slot, DeviceType::kCuda, FillCuda);

}  // namespace
}  // namespace lockstep::cuda
