// A stable radix sort of all elements by 16 bits of their keys after the other, and then by row.
#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/radix_sort.cuh"
#include "kernels/topk/topk.h"

namespace lockstep::cuda {
namespace {

constexpr int kDigitBits = 16, kDigits = 1 << kDigitBits;

// keys[i] = 16 bits, from `shift` on, of the key of x[places[i]] (null: x[i]). Keys are integers in
// the order of the numbers: 0 and -0 are equal, and NaN is above all. Grid: one thread per element.
// No shared memory.
template <class T>
__global__ void DigitKernel(const T* x, const int* places, int64_t elements, bool descending,
                            int shift, int* keys) {
  const int64_t i = GlobalThread();
  if (i >= elements) return;
  const T value = x[places != nullptr ? places[i] : i];
  const float v = ToFloat(value);
  constexpr uint32_t kSign = 0x80000000u;
  uint32_t bits = __float_as_uint(v);
  if constexpr (std::is_same_v<T, f16>) bits = uint32_t{__half_as_ushort(value)} << kDigitBits;
  if (v == 0.0f) bits = 0;
  const uint32_t number = (bits & kSign) != 0 ? ~bits : bits | kSign;
  const uint32_t key = v != v ? ~uint32_t{0} : number;
  keys[i] = static_cast<int>((descending ? ~key : key) >> shift & (kDigits - 1));
}

// index[row, j] = the j-th of the row's places. Grid: one thread per element of the index. No
// shared memory.
template <int kThreads>
__global__ void __launch_bounds__(kThreads)
    FirstPlacesKernel(const int* places, int64_t n, int64_t k, int64_t elements, int64_t* index) {
  const int64_t i = GlobalThread();
  if (i >= elements) return;
  const int64_t row = i / k, j = i - row * k;
  index[i] = places[row * n + j] - row * n;
}

void SortRowsCuda(Stream stream, bool descending, const Tensor& x, const Tensor& index) {
  if (index.numel() == 0) return;
  const int64_t elements = x.numel(), n = x.dim(1);
  const LaunchName name("sort_rows", x);
  RadixSort sort(name, stream, elements);
  const Tensor keys = Tensor::Empty({elements}, DType::kI32, x.device());
  // The keys of 16-bit floats are in the upper half.
  for (int shift = SizeOf(x.dtype()) == 2 ? kDigitBits : 0, first = shift; shift < 32;
       shift += kDigitBits) {
    const bool sorted = shift != first;
    DispatchFloat("sort", x.dtype(), [&]<class T>(TypeTag<T>) {
      LaunchThreads(name, DigitKernel<T>, elements, stream, Data<T>(x),
                    sorted ? Data<int>(sort.places()) : nullptr, elements, descending, shift,
                    Data<int>(keys));
    });
    sort.By(static_cast<const int*>(Data<int>(keys)), 0, kDigits - 1, sorted);
  }
  sort.ByColumn(n, 1);
  LaunchThreads(name, FirstPlacesKernel<kElementwiseThreads>, index.numel(), stream,
                Data<int>(sort.places()), n, index.dim(1), index.numel(), Data<int64_t>(index));
}

LS_REGISTER(sort_rows, DeviceType::kCuda, SortRowsCuda);

}  // namespace
}  // namespace lockstep::cuda
