// The rows of layer_norm, rms_norm and residual_norm: one set of kernels.
#pragma once

#include "core/autograd/gradients.h"
#include "kernels/cuda/column_sums.cuh"

namespace lockstep::cuda {

// What is normalised: the row less its mean (layer_norm), or the row itself (rms_norm).
enum class Centring { kMean, kNone };

// In the place of a weight's type: there is no weight, and its pointer is null. The compiler drops
// the products by 1.
struct NoWeight {};
__device__ inline float ToFloat(NoWeight) { return 1.0f; }
template <int N>
struct Packed<NoWeight, N> {
  __device__ NoWeight operator[](int) const { return {}; }
};
template <bool kAligned, int N>
__device__ inline Packed<NoWeight, N> LoadRow(const NoWeight*, int64_t, int64_t) {
  return {};
}
template <class W>
inline constexpr bool kHasWeight = !std::is_same_v<W, NoWeight>;
template <class W>
const W* WeightData(const Tensor& weight) {
  if constexpr (kHasWeight<W>) {
    return Data<W>(weight);
  } else {
    return nullptr;
  }
}

// Packs of a row that each thread keeps in registers: rows of up to 128 threads x 4 packs are read
// from memory once; the rest is read again, from the cache.
inline constexpr int kNormHeld = 4;

template <class T, class W>
struct NormForwardRows {
  int64_t rows, c;
  const T* x;
  const W *weight, *bias;  // bias may be null
  float eps;
  T* y;
  float *mean, *rstd;  // mean unused if not centred
};

// What is added to x before it is normalised; in layer_norm and rms_norm, nothing. Such a function,
// made by Bind() in each thread, takes a pack of x at element `at` of row `row`, and returns the
// sum. kSum: it has stored the sum at `sum`. kBlocks: blocks per multiprocessor; 0 leaves the
// choice to nvcc, which may aim at more and spill.
template <class T>
struct NoBranch {
  static constexpr bool kSum = false;
  static constexpr int kBlocks = sizeof(T) == 4 ? 7 : 0;
  __device__ const NoBranch& Bind() const { return *this; }
  template <bool kAligned, int N>
  __device__ Packed<T, N> Add(const Packed<T, N>& x, int64_t, int64_t, int64_t) const {
    return x;
  }
};

// One pass over memory: reads x (and branch), writes y (and sum).
// Grid: one block per row. Shared memory: one f32 per warp. Mean and variance in f32, the variance
// in a second sweep over the centred values. Deterministic: the order of sums depends only on c.
template <Centring kCentring, int Threads, bool kAligned, class T, class W, class Branch>
__global__ void __launch_bounds__(Threads, kAligned ? Branch::kBlocks : 0)
    NormForwardKernel(NormForwardRows<T, W> in, Branch branch) {
  constexpr int N = kPackSize<T>;
  __shared__ float scratch[Threads / kWarpSize];
  const int64_t c = in.c, row = blockIdx.x;
  const auto bound = branch.Bind();
  const T* x = in.x + row * c;
  if constexpr (Branch::kSum) x = branch.sum + row * c;
  Packed<T> held[kNormHeld];
  float sum = 0;
  ForEachPack<Threads, N, kNormHeld>(c, [&](int k, int64_t at) {
    const Packed<T> v =
        bound.template Add<kAligned>(LoadRow<kAligned, N>(in.x + row * c, at, c), row, at, c);
    if (k < kNormHeld) held[k] = v;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += ToFloat(v[i]);
  });
  const auto get = [&](int k, int64_t at) {
    return k < kNormHeld ? held[k] : LoadRow<kAligned, N>(x, at, c);
  };
  float mean = 0;
  if constexpr (kCentring == Centring::kMean) {
    mean = BlockSum<Threads>(sum, scratch) / static_cast<float>(c);
  }
  float squares = 0;
  ForEachPack<Threads, N, kNormHeld>(c, [&](int k, int64_t at) {
    const Packed<T> v = get(k, at);
    ForEachElement<kAligned, N>(at, c, [&](int i) {
      const float centred = ToFloat(v[i]) - mean;
      squares += centred * centred;
    });
  });
  squares = BlockSum<Threads>(squares, scratch);
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(c) + in.eps);
  if (threadIdx.x == 0) {
    if constexpr (kCentring == Centring::kMean) in.mean[row] = mean;
    in.rstd[row] = rstd;
  }
  ForEachPack<Threads, N, kNormHeld>(c, [&](int k, int64_t at) {
    const Packed<T> v = get(k, at);
    const Packed<W, N> w = LoadRow<kAligned, N>(in.weight, at, c);
    Packed<T> y;
    if (in.bias != nullptr) {
      const Packed<W, N> b = LoadRow<kAligned, N>(in.bias, at, c);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        y[i] = Convert<T>((ToFloat(v[i]) - mean) * rstd * ToFloat(w[i]) + ToFloat(b[i]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        y[i] = Convert<T>((ToFloat(v[i]) - mean) * rstd * ToFloat(w[i]));
      }
    }
    StoreRow<kAligned>(in.y + row * c, at, c, y);
  });
}

// Backward reads a row once if the threads of this many warps hold it, kNormPack elements each.
inline constexpr int kNormPack = 8;
inline constexpr int kMostNormWarps = 16;
inline constexpr int64_t kNormColumns = int64_t{kMostNormWarps} * kWarpSize * kNormPack;

template <class T, class W>
struct NormBackwardRows {
  int64_t rows, c;
  const T *x, *dy;  // x is what was normalised
  const T* added;   // null, or a gradient of x that is added; may be dx
  const W* weight;
  const float *mean, *rstd;
  T* dx;                   // null: not needed
  const float2* row_sums;  // null, or for rows beyond kNormColumns: of NormRowSumsKernel
  // Null, or [blocks, sums, c]: this block's part of the gradients of the weight, of the bias if
  // centred, and of what the branch adds up.
  float* partial;
  int64_t block_rows;  // rows per block
  float c_inverse;     // 1 / c
};

// What happens to dx once it is computed; with NoBranch, nothing. Such a function, made by Bind()
// in each thread, takes a pack of dx, and may add to kSums more sums of the pack's columns.
// kRegisters: how many a thread needs, in rows of whole packs, so as not to spill.
template <class T>
struct NoBranchGradient {
  static constexpr int kSums = 0;
  static constexpr int kRegisters = sizeof(T) == 4 ? 104 : 80;
  __device__ const NoBranchGradient& Bind() const { return *this; }
  template <bool kAligned, int N>
  __device__ void HandOn(const Packed<T, N>&, int64_t, int64_t, int64_t, float (*)[N]) const {}
};

// With xhat = (x - mean) rstd and g = dy w:  dx = rstd (g - mean(g) - xhat mean(g xhat)), where
// mean(g) is left out if not centred; dweight = sum over rows of dy xhat, dbias = that of dy. g is
// rounded, so that it cancels exactly against a mean of equal values.
struct NormTerms {
  float xhat, g;
};
__device__ inline NormTerms TermsOf(float x, float dy, float w, float mean, float rstd) {
  return {(x - mean) * rstd, __fmul_rn(dy, w)};
}

// x / c, rounded as a division rounds it, except for quotients that are denormal or infinite.
__device__ inline float DivideByColumns(float x, float c, float c_inverse) {
  const float quotient = x * c_inverse;
  return fmaf(fmaf(-quotient, c, x), c_inverse, quotient);
}

// The sums of (g, g xhat) over each row, for rows too long for one block of NormBackwardKernel.
// Grid: one block per row. Shared memory: two f32 per warp. Deterministic.
inline constexpr int kNormRowSumsThreads = 256;
template <bool kAligned, class T, class W>
__global__ void __launch_bounds__(kNormRowSumsThreads)
    NormRowSumsKernel(NormBackwardRows<T, W> in, float2* row_sums) {
  constexpr int N = kPackSize<T>, kThreads = kNormRowSumsThreads;
  __shared__ float scratch[kThreads / kWarpSize];
  __shared__ float scratch2[kThreads / kWarpSize];
  const int64_t c = in.c, row = blockIdx.x;
  const float mean = in.mean != nullptr ? in.mean[row] : 0.0f, rstd = in.rstd[row];
  float2 sum{0, 0};
  ForEachPack<kThreads, N, 0>(c, [&](int, int64_t at) {
    const Packed<T> x = LoadRow<kAligned, N>(in.x + row * c, at, c);
    const Packed<T> dy = LoadRow<kAligned, N>(in.dy + row * c, at, c);
    const Packed<W, N> w = LoadRow<kAligned, N>(in.weight, at, c);
#pragma unroll
    for (int i = 0; i < N; ++i) {  // past the row's end dy is zero
      const NormTerms t = TermsOf(ToFloat(x[i]), ToFloat(dy[i]), ToFloat(w[i]), mean, rstd);
      sum.x += t.g;
      sum.y += t.g * t.xhat;
    }
  });
  sum.x = BlockSum<kThreads>(sum.x, scratch);
  sum.y = BlockSum<kThreads>(sum.y, scratch2);
  if (threadIdx.x == 0) row_sums[row] = sum;
}

// What a thread reads of a row.
template <class T>
struct NormRow {
  Packed<T, kNormPack> x, dy, added;
  float mean, rstd;
};

// One pass over memory: reads x and dy (and `added`), writes dx; and c sums per block. The next row
// is read before this one is added up.
// Grid: x is one block per `block_rows` rows, y one per kNormColumns columns. A thread has the same
// columns in each row: it adds up their dweight and dbias in registers. Shared memory: four f32 per
// warp; one barrier per row. Deterministic: the order of sums depends only on the shape; no
// atomics.
template <Centring kCentring, int kWarps, bool kAligned, class T, class W, class Branch>
__global__ void __launch_bounds__(kWarps* kWarpSize,
                                  kAligned ? 65536 / (kWarps * kWarpSize * Branch::kRegisters) : 1)
    NormBackwardKernel(NormBackwardRows<T, W> in, Branch branch) {
  constexpr int N = kNormPack;
  constexpr bool kCentred = kCentring == Centring::kMean;
  constexpr int kNormSums = kCentred ? 2 : 1, kSums = kNormSums + Branch::kSums;
  __shared__ float2 of_warps[2 * kWarps];  // of even and odd rows
  const int64_t c = in.c;
  const int64_t at = blockIdx.y * kNormColumns + static_cast<int64_t>(threadIdx.x) * N;
  const bool has_columns = at < c;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = WarpOfBlock();
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const auto bound = branch.Bind();
  const Packed<W, N> w = has_columns ? LoadRow<kAligned, N>(in.weight, at, c) : Packed<W, N>{};
  const auto load = [&](int64_t row) {
    NormRow<T> r{};
    r.mean = kCentred ? in.mean[row] : 0.0f;
    r.rstd = in.rstd[row];
    if (has_columns) {
      r.x = LoadRow<kAligned, N>(in.x + row * c, at, c);
      r.dy = LoadRow<kAligned, N>(in.dy + row * c, at, c);
      if (in.added != nullptr) r.added = LoadRow<kAligned, N>(in.added + row * c, at, c);
    }
    return r;
  };
  const auto terms = [&](const NormRow<T>& r, int i) {
    return TermsOf(ToFloat(r.x[i]), ToFloat(r.dy[i]), ToFloat(w[i]), r.mean, r.rstd);
  };
  float sums[kSums][N] = {};
  const int64_t first = blockIdx.x * in.block_rows;
  const int64_t last = Min(first + in.block_rows, in.rows);
  NormRow<T> next = load(first);
  for (int64_t row = first; row < last; ++row) {
    const NormRow<T> r = next;
    if (row + 1 < last) next = load(row + 1);
    float2 sum{0, 0};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const NormTerms t = terms(r, i);
      const float dy = ToFloat(r.dy[i]);
      sum.x += t.g;
      sum.y += t.g * t.xhat;
      sums[0][i] += dy * t.xhat;
      if constexpr (kCentred) sums[1][i] += dy;
    }
    if (in.dx == nullptr) continue;
    if (in.row_sums != nullptr) {
      sum = in.row_sums[row];
    } else {
      sum.x = WarpSum(sum.x);
      sum.y = WarpSum(sum.y);
      float2* parity = of_warps + (row % 2) * kWarps;
      if (lane == 0) parity[warp] = sum;
      __syncthreads();
      sum = parity[0];
#pragma unroll
      for (int i = 1; i < kWarps; ++i) {
        if (i >= warps) break;
        sum.x += parity[i].x;
        sum.y += parity[i].y;
      }
    }
    if (!has_columns) continue;
    const auto columns = static_cast<float>(c);
    const float mean_g = kCentred ? DivideByColumns(sum.x, columns, in.c_inverse) : 0.0f;
    const float mean_gx = DivideByColumns(sum.y, columns, in.c_inverse);
    Packed<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const NormTerms t = terms(r, i);
      const float gradient = r.rstd * (t.g - mean_g - t.xhat * mean_gx);
      out[i] = Convert<T>(ToFloat(r.added[i]) + gradient);
    }
    StoreRow<kAligned>(in.dx + row * c, at, c, out);
    bound.template HandOn<kAligned>(out, row, at, c, sums + kNormSums);
  }
  if (in.partial == nullptr || !has_columns) return;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
    Packed<float, N> packed;
#pragma unroll
    for (int i = 0; i < N; ++i) packed[i] = sums[s][i];
    StoreRow<kAligned>(in.partial + (blockIdx.x * kSums + s) * c, at, c, packed);
  }
}

// ---- Launchers. W is the dtype of the weight: T or f32, or NoWeight. ----

// `aligned`: whether the branch's memory allows packs too.
template <Centring kCentring, class T, class W, class Branch = NoBranch<T>>
void NormForward(const LaunchName& name, Stream stream, const NormForwardRows<T, W>& in,
                 const Branch& branch = {}, bool aligned = true) {
  aligned = aligned && AlignedRows(in.c, in.x, in.y) && AllAligned16(in.weight, in.bias);
  DispatchRowThreads(DivideUp(in.c, kPackSize<T>), [&](auto threads) {
    DispatchBool(aligned, [&](auto is_aligned) {
      constexpr int kThreads = decltype(threads)::value;
      Launch(name,
             NormForwardKernel<kCentring, kThreads, decltype(is_aligned)::value, T, W, Branch>,
             Blocks(in.rows, 1), kThreads, 0, stream, in, branch);
    });
  });
}

// Calls f(std::integral_constant<int, most>) with a block size, in warps, that has room.
template <class F>
void DispatchNormWarps(int64_t warps, F&& f) {
  if (warps <= 3) return f(std::integral_constant<int, 3>());
  if (warps <= 7) return f(std::integral_constant<int, 7>());
  f(std::integral_constant<int, kMostNormWarps>());
}

// Where the gradients of parameters go; those without a tensor are not computed.
struct NormParameterGradients {
  GradTarget weight{}, bias{}, branch_bias{};
};

template <Centring kCentring, class T, class W, class Branch = NoBranchGradient<T>>
void NormBackward(const LaunchName& name, Stream stream, NormBackwardRows<T, W> in, Device device,
                  const NormParameterGradients& gradients, const Branch& branch = {},
                  bool aligned = true) {
  constexpr int64_t kNormSums = kCentring == Centring::kMean ? 2 : 1;
  constexpr int64_t kSums = kNormSums + Branch::kSums;
  constexpr int64_t kLeastRows = 16, kMostBlocks = 1024;
  const bool wanted = gradients.weight.tensor.defined() || gradients.bias.tensor.defined() ||
                      gradients.branch_bias.tensor.defined();
  const int64_t sums = kSums * in.c;
  in.block_rows = std::max(kLeastRows, DivideUp(in.rows, kMostBlocks));
  in.c_inverse = 1.0f / static_cast<float>(in.c);
  const int64_t blocks = DivideUp(in.rows, in.block_rows);
  const Tensor partial = Tensor::Empty({wanted ? blocks : 0, sums}, DType::kF32, device);
  in.partial = wanted ? Data<float>(partial) : nullptr;
  aligned = aligned && in.c % kNormPack == 0 && AllAligned16(in.x, in.dy, in.added, in.dx) &&
            AllAligned16(in.weight);
  const bool is_long = in.c > kNormColumns && in.dx != nullptr;
  const Tensor row_sums = Tensor::Empty({is_long ? in.rows : 0, 2}, DType::kF32, device);
  const int64_t warps = DivideUp(std::min(in.c, kNormColumns), kWarpSize * kNormPack);
  const dim3 grid(Blocks(in.rows, in.block_rows),
                  static_cast<unsigned>(DivideUp(in.c, kNormColumns)));
  DispatchBool(aligned, [&](auto is_aligned) {
    constexpr bool kAligned = decltype(is_aligned)::value;
    if (is_long) {
      auto* const sums_of_rows = reinterpret_cast<float2*>(Data<float>(row_sums));
      Launch(name, NormRowSumsKernel<kAligned, T, W>, Blocks(in.rows, 1), kNormRowSumsThreads, 0,
             stream, in, sums_of_rows);
      in.row_sums = sums_of_rows;
    }
    DispatchNormWarps(warps, [&](auto most) {
      constexpr int kWarps = decltype(most)::value;
      Launch(name, NormBackwardKernel<kCentring, kWarps, kAligned, T, W, Branch>, grid,
             static_cast<unsigned>(warps * kWarpSize), 0, stream, in, branch);
    });
  });
  const auto finish = [&](const GradTarget& target, int64_t row) {
    if (!target.tensor.defined()) return;
    ColumnSums(name.name(), stream, in.partial == nullptr ? nullptr : in.partial + row * in.c,
               blocks, in.c, sums, target.tensor, target.accumulate);
  };
  finish(gradients.weight, 0);
  finish(gradients.bias, kNormSums - 1);
  finish(gradients.branch_bias, kNormSums);
}

// Calls f(TypeTag<T>, TypeTag<W>) for an x of T and a weight of T or f32.
template <class F>
void DispatchNorm(const char* op, const Tensor& x, const Tensor& weight, F&& f) {
  DispatchFloat(op, x.dtype(), [&](auto tag) {
    if (weight.dtype() == x.dtype()) return f(tag, tag);
    f(tag, TypeTag<float>());
  });
}
// The same for a weight that may be undefined, of an RMS norm.
template <class F>
void DispatchRmsNorm(const char* op, const Tensor& x, const Tensor& weight, F&& f) {
  if (weight.defined()) return DispatchNorm(op, x, weight, f);
  DispatchFloat(op, x.dtype(), [&](auto tag) { f(tag, TypeTag<NoWeight>()); });
}

}  // namespace lockstep::cuda
