// The rows of layer_norm, rms_norm and residual_norm: one set of kernels.
#pragma once

#include "kernels/cuda/column_sums.cuh"

namespace lockstep::cuda {

// What is normalised: the row less its mean (layer_norm), or the row itself (rms_norm).
enum class Centring { kMean, kNone };

// Packs of a row that each thread keeps in registers: rows of up to 128 threads x 4 packs are read
// from memory once; what is beyond comes again from the cache.
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

// What is added to x before it is normalised, in layer_norm and rms_norm: nothing. Such a function,
// made by Bind() in each thread, takes a pack of x at element `at` of row `row`, and returns the
// sum. kSum: it has stored that, and `sum` is where. kBlocks: as many on a multiprocessor, 0
// is nvcc's choice; left to itself, it may aim at more and spill.
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
// Grid: a block to a row. Shared memory: one f32 per warp. Mean and variance in f32, the variance
// in a second sweep over the centred values. Deterministic: sums follow from c alone.
template <Centring kCentring, int Threads, bool kAligned, class T, class W, class Branch>
__global__ void __launch_bounds__(Threads, kAligned ? Branch::kBlocks : 0)
    NormForwardKernel(NormForwardRows<T, W> in, Branch branch) {
  constexpr int N = kPackSize<T>;
  SHARED_ARRAY(float, scratch, Threads / kWarpSize);
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

template <class T, class W>
struct NormBackwardRows {
  int64_t rows, c;
  const T *x, *dy;  // x is what was normalised
  const T* dsum;    // null, or a gradient of x that is added
  const W* weight;
  const float *mean, *rstd;
  T* dx;  // null: not wanted
  bool accumulate;
  // Null, or [blocks, sums, c]: this block's part of the gradients of the weight, if centred of the
  // bias, and of what the branch adds up.
  float* partial;
  bool shared_sums;    // collected in shared memory, where they fit
  int64_t block_rows;  // rows of a block
};

// What becomes of dx, after NoBranch: nothing more. Such a function, made by Bind() in each thread,
// takes a pack of dx, and may add to kSums more rows of sums. kBlocks as above.
template <class T>
struct NoBranchGradient {
  static constexpr int kSums = 0;
  static constexpr int kBlocks = 0;
  __device__ const NoBranchGradient& Bind() const { return *this; }
  template <bool kAligned, int N>
  __device__ void HandOn(const Packed<T, N>&, int64_t, int64_t, int64_t, float*) const {}
};

// With xhat = (x - mean) rstd and g = dy w:  dx = rstd (g - mean(g) - xhat mean(g xhat)), where
// mean(g) stays out if not centred; dweight = sum over rows of dy xhat, dbias = that of dy. g is
// rounded, so that it cancels exactly against a mean of equal values.
//
// One pass over memory: reads x and dy (and dsum, or dx), writes dx; and c sums per block.
// Grid: a block to `block_rows` rows. A thread has the same columns in each row: it adds up their
// dweight and dbias without synchronisation. Shared memory: two f32 per warp, and the sums.
// Deterministic: sums follow from the shape alone; no atomics.
template <Centring kCentring, int Threads, bool kAligned, class T, class W, class Branch>
__global__ void __launch_bounds__(Threads, Branch::kBlocks)
    NormBackwardKernel(NormBackwardRows<T, W> in, Branch branch) {
  constexpr int N = kPackSize<T>;
  constexpr int kHeld = 2;
  constexpr bool kCentred = kCentring == Centring::kMean;
  SHARED_ARRAY(float, scratch, Threads / kWarpSize);
  SHARED_ARRAY(float, scratch2, Threads / kWarpSize);
  DYN_SHARED(float, shared_sums);
  constexpr int kNormSums = kCentred ? 2 : 1, kSums = kNormSums + Branch::kSums;
  const int64_t c = in.c, sums_size = kSums * c;
  const auto bound = branch.Bind();
  float* partial = in.partial != nullptr ? in.partial + blockIdx.x * sums_size : nullptr;
  float* sums = in.shared_sums ? shared_sums : partial;
  if (partial != nullptr) {
    ForEachPack<Threads, N, 0>(c, [&](int, int64_t at) {
      ForEachElement<kAligned, N>(at, c, [&](int i) {
#pragma unroll
        for (int s = 0; s < kSums; ++s) sums[s * c + at + i] = 0;
      });
    });
  }
  const int64_t first = blockIdx.x * in.block_rows;
  const int64_t last = Min(first + in.block_rows, in.rows);
  for (int64_t row = first; row < last; ++row) {
    const T *x = in.x + row * c, *dy = in.dy + row * c;
    const float mean = kCentred ? in.mean[row] : 0.0f, rstd = in.rstd[row];
    Packed<T> held_x[kHeld], held_dy[kHeld];
    float sum_g = 0, sum_gx = 0;
    ForEachPack<Threads, N, kHeld>(c, [&](int k, int64_t at) {
      const Packed<T> vx = LoadRow<kAligned, N>(x, at, c), vdy = LoadRow<kAligned, N>(dy, at, c);
      if (k < kHeld) {
        held_x[k] = vx;
        held_dy[k] = vdy;
      }
      const Packed<W, N> w = LoadRow<kAligned, N>(in.weight, at, c);
      ForEachElement<kAligned, N>(at, c, [&](int i) {
        const float xhat = (ToFloat(vx[i]) - mean) * rstd, d = ToFloat(vdy[i]);
        const float g = __fmul_rn(d, ToFloat(w[i]));
        sum_g += g;
        sum_gx += g * xhat;
        if (partial != nullptr) {
          sums[at + i] += d * xhat;
          if constexpr (kCentred) sums[c + at + i] += d;
        }
      });
    });
    if (in.dx == nullptr) continue;
    float mean_g = 0;
    if constexpr (kCentred) mean_g = BlockSum<Threads>(sum_g, scratch) / static_cast<float>(c);
    const float mean_gx = BlockSum<Threads>(sum_gx, scratch2) / static_cast<float>(c);
    const T* added = in.dsum != nullptr ? in.dsum + row * c
                     : in.accumulate    ? in.dx + row * c
                                        : nullptr;
    ForEachPack<Threads, N, kHeld>(c, [&](int k, int64_t at) {
      const Packed<T> vx = k < kHeld ? held_x[k] : LoadRow<kAligned, N>(x, at, c);
      const Packed<T> vdy = k < kHeld ? held_dy[k] : LoadRow<kAligned, N>(dy, at, c);
      const Packed<W, N> w = LoadRow<kAligned, N>(in.weight, at, c);
      Packed<T> before, out;
      if (added != nullptr) before = LoadRow<kAligned, N>(added, at, c);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float xhat = (ToFloat(vx[i]) - mean) * rstd;
        const float g = __fmul_rn(ToFloat(vdy[i]), ToFloat(w[i]));
        const float gradient = rstd * (g - mean_g - xhat * mean_gx);
        out[i] = Convert<T>(added != nullptr ? ToFloat(before[i]) + gradient : gradient);
      }
      StoreRow<kAligned>(in.dx + row * c, at, c, out);
      bound.template HandOn<kAligned>(out, row, at, c, sums + kNormSums * c);
    });
  }
  if (partial == nullptr || !in.shared_sums) return;
  ForEachPack<Threads, N, 0>(c, [&](int, int64_t at) {
    ForEachElement<kAligned, N>(at, c, [&](int i) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) partial[s * c + at + i] = sums[s * c + at + i];
    });
  });
}

// ---- Launchers. W is the dtype of the weight: T or f32. ----

// `aligned`: whether the branch's memory allows packs too.
template <Centring kCentring, class T, class W, class Branch = NoBranch<T>>
void NormForward(const LaunchName& name, Stream stream, const NormForwardRows<T, W>& in,
                 const Branch& branch = {}, bool aligned = true) {
  aligned = aligned && AlignedRows(in.c, in.x, in.y) && AllAligned16(in.weight, in.bias);
  DispatchRowThreads(CeilDiv(in.c, kPackSize<T>), [&](auto threads) {
    DispatchBool(aligned, [&](auto is_aligned) {
      constexpr int kThreads = decltype(threads)::value;
      Launch(name,
             NormForwardKernel<kCentring, kThreads, decltype(is_aligned)::value, T, W, Branch>,
             Blocks(in.rows, 1), kThreads, 0, stream, in, branch);
    });
  });
}

// Where the gradients of parameters go; what has no tensor is not wanted.
struct NormParameterGradients {
  GradSink::Target weight{}, bias{}, branch_bias{};
};

template <Centring kCentring, class T, class W, class Branch = NoBranchGradient<T>>
void NormBackward(const LaunchName& name, Stream stream, NormBackwardRows<T, W> in, Device device,
                  const NormParameterGradients& gradients, const Branch& branch = {},
                  bool aligned = true) {
  constexpr int64_t kNormSums = kCentring == Centring::kMean ? 2 : 1;
  constexpr int64_t kSums = kNormSums + Branch::kSums;
  constexpr int64_t kLeastRows = 16, kMostBlocks = 512, kSharedBytes = 96 << 10;
  const bool wanted = gradients.weight.tensor.defined() || gradients.bias.tensor.defined() ||
                      gradients.branch_bias.tensor.defined();
  const int64_t sums = kSums * in.c;
  in.block_rows = std::max(kLeastRows, CeilDiv(in.rows, kMostBlocks));
  const int64_t blocks = CeilDiv(in.rows, in.block_rows);
  const Tensor partial = Tensor::Empty({wanted ? blocks : 0, sums}, DType::kF32, device);
  in.partial = wanted ? Data<float>(partial) : nullptr;
  in.shared_sums = wanted && sums * int64_t{sizeof(float)} <= kSharedBytes;
  const size_t bytes = in.shared_sums ? static_cast<size_t>(sums) * sizeof(float) : 0;
  aligned = aligned && AlignedRows(in.c, in.x, in.dy, in.dsum, in.dx) && AllAligned16(in.weight);
  DispatchRowThreads(CeilDiv(in.c, kPackSize<T>), [&](auto threads) {
    DispatchBool(aligned, [&](auto is_aligned) {
      constexpr int kThreads = decltype(threads)::value;
      Launch(name,
             NormBackwardKernel<kCentring, kThreads, decltype(is_aligned)::value, T, W, Branch>,
             Blocks(in.rows, in.block_rows), kThreads, bytes, stream, in, branch);
    });
  });
  const auto finish = [&](const GradSink::Target& target, int64_t row) {
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

}  // namespace lockstep::cuda
