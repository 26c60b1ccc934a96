#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/packed.cuh"
#include "kernels/nf4/nf4.h"

namespace lockstep::cuda {
namespace {

constexpr int kValues = 8;  // of a thread: 4 bytes of codes, within a block

__constant__ float kCode[16] = {kNf4Code[0],  kNf4Code[1],  kNf4Code[2],  kNf4Code[3],
                                kNf4Code[4],  kNf4Code[5],  kNf4Code[6],  kNf4Code[7],
                                kNf4Code[8],  kNf4Code[9],  kNf4Code[10], kNf4Code[11],
                                kNf4Code[12], kNf4Code[13], kNf4Code[14], kNf4Code[15]};

// The scales of a matrix: see Nf4Matrix::Layout. map is null unless they are double quantised.
struct Scales {
  const float *map, *offset, *groups;
  const void* scales;

  __device__ float Of(int64_t block) const {
    if (map == nullptr) return static_cast<const float*>(scales)[block];
    const int q = static_cast<const uint8_t*>(scales)[block];
    // Two roundings: as one multiply-add it would have other bits.
    return __fadd_rn(__fmul_rn(map[q], groups[block / kNf4Group]), *offset);
  }
};

// out [m, n] = the matrix, `columns` wide, from its value `first` on: element (i, j) is value first
// + i columns + j. Grid: one thread for 8 neighbouring elements of out. Shared memory: the 16
// values of codes, each in a bank of its own. `packed`: n, columns and first are multiples of 8,
// and out is aligned: a thread's elements are in one row and one block. Else element by element.
// Deterministic: nothing is summed.
template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    Nf4DequantizeKernel(const uint8_t* codes, Scales scales, int64_t first, int64_t columns,
                        int64_t m, int64_t n, bool packed, T* out) {
  __shared__ float code[16];
  if (threadIdx.x < 16) code[threadIdx.x] = kCode[threadIdx.x];
  __syncthreads();
  const int64_t begin = GlobalThread() * kValues;
  if (begin >= m * n) return;
  if (packed) {
    const int64_t row = DivideSmall(begin / kValues, n / kValues);
    const int64_t at = first + row * columns + (begin - row * n);
    const float scale = scales.Of(at / kNf4Block);
    const uint32_t bytes = *reinterpret_cast<const uint32_t*>(codes + at / 2);
    Packed<T, kValues> values;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const int shift = i / 2 * 8 + (i % 2 == 0 ? 4 : 0);
      values[i] = Convert<T>(code[bytes >> shift & 15] * scale);
    }
    Store(out + begin, values);
    return;
  }
  for (int64_t i = begin; i < m * n && i < begin + kValues; ++i) {
    const int64_t at = first + i / n * columns + i % n;
    const int byte = codes[at / 2];
    const float scale = scales.Of(at / kNf4Block);
    out[i] = Convert<T>(code[at % 2 == 0 ? byte >> 4 : byte & 15] * scale);
  }
}

void Nf4DequantizeCuda(Stream stream, const Nf4DequantizeArgs& args) {
  const Nf4Matrix& matrix = args.matrix;
  const Nf4Matrix::Layout l = matrix.layout();
  const auto* const data = static_cast<const uint8_t*>(matrix.data.raw_data());
  const auto f32 = [&](int64_t at) { return reinterpret_cast<const float*>(data + at); };
  Scales scales{nullptr, nullptr, nullptr, data + l.scales};
  if (matrix.double_quantized) {
    scales = {f32(l.map), f32(l.offset), f32(l.group_scales), data + l.scales};
  }
  const int64_t m = args.out.dim(0), n = args.out.dim(1), columns = matrix.columns();
  const int64_t first = args.row * columns + args.column;
  DispatchFloat("nf4", args.out.dtype(), [&]<class T>(TypeTag<T>) {
    T* const out = Data<T>(args.out);
    const bool packed = n % kValues == 0 && columns % kValues == 0 && first % kValues == 0 &&
                        m * n / kValues <= UINT32_MAX && AllAligned16(out, data);
    LaunchThreads({"nf4_dequantize", args.out}, Nf4DequantizeKernel<T>, DivideUp(m * n, kValues),
                  stream, data + l.codes, scales, first, columns, m, n, packed, out);
  });
}

LS_REGISTER(nf4_dequantize, DeviceType::kCuda, Nf4DequantizeCuda);

}  // namespace
}  // namespace lockstep::cuda
