#include "core/cuda/launch.h"
#include "kernels/batch_norm/batch_norm.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"

namespace lockstep::cuda {
namespace {

// ---- Joining. Item 2 i absorbs item 2 i + 1, then item 4 i absorbs item 4 i + 2, and so on: the
// tree over 2^a times 2^b items is the tree over 2^a trees over 2^b. ----

// join(i, j): item i becomes items i and j. The result is item 0.
template <class F>
__device__ inline void JoinPairwise(int64_t items, const F& join) {
  for (int64_t width = 1; width < items; width *= 2) {
    for (int64_t i = 0; i + width < items; i += 2 * width) join(i, i + width);
  }
}

// Joins parts [items, 3, c] of counts, means and squares in place, and copies the result to out
// [3, c].
// Grid: one thread per channel. No shared memory. Deterministic: the tree follows from the items.
__global__ void __launch_bounds__(kElementwiseThreads)
    JoinMomentsKernel(float* parts, int64_t items, int64_t c, float* out) {
  const int64_t k = GlobalThread();
  if (k >= c) return;
  JoinPairwise(items, [=](int64_t i, int64_t j) {
    float *a = parts + i * 3 * c + k, *b = parts + j * 3 * c + k;
    const float n = a[0] + b[0];
    const float share = n > 0 ? b[0] / n : 0.0f;  // b's; exactly 1/2 for equal counts
    const float delta = b[c] - a[c];
    a[2 * c] = fmaf(delta * delta * a[0], share, a[2 * c] + b[2 * c]);
    a[c] = fmaf(delta, share, a[c]);
    a[0] = n;
  });
  for (int row = 0; row < 3; ++row) out[row * c + k] = items > 0 ? parts[row * c + k] : 0.0f;
}

// The same for sums [items, 2, c].
__global__ void __launch_bounds__(kElementwiseThreads)
    AddPartsKernel(float* parts, int64_t items, int64_t c, float* out) {
  const int64_t k = GlobalThread();
  if (k >= c) return;
  JoinPairwise(items, [=](int64_t i, int64_t j) {
    for (int row = 0; row < 2; ++row) {
      parts[(2 * i + row) * c + k] += parts[(2 * j + row) * c + k];
    }
  });
  for (int row = 0; row < 2; ++row) out[row * c + k] = items > 0 ? parts[row * c + k] : 0.0f;
}

// ---- Sums over the planes [S] of x [N, C, S]: one block for each. ----

// parts [n, 3, c]: count, mean and squared deviations of a plane, in two sweeps; the second finds
// the plane in the cache.
// Grid: one block per plane. Shared memory: one f32 per warp. Deterministic: the order follows from
// the plane's size.
template <int Threads, bool kAligned, class T>
__global__ void __launch_bounds__(Threads)
    PlaneMomentsKernel(const T* x, int64_t c, int64_t size, float* parts) {
  constexpr int N = kPackSize<T>;
  __shared__ float scratch[Threads / kWarpSize];
  const int64_t row = blockIdx.x;
  const T* from = x + row * size;
  float sum = 0, squares = 0;
  ForEachPack<Threads, N, 0>(size, [&](int, int64_t at) {
    const Packed<T> v = LoadRow<kAligned, N>(from, at, size);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += ToFloat(v[i]);
  });
  const float count = static_cast<float>(size);
  const float mean = size > 0 ? BlockSum<Threads>(sum, scratch) / count : 0.0f;
  ForEachPack<Threads, N, 0>(size, [&](int, int64_t at) {
    const Packed<T> v = LoadRow<kAligned, N>(from, at, size);
    ForEachElement<kAligned, N>(at, size, [&](int i) {
      const float centred = ToFloat(v[i]) - mean;
      squares += centred * centred;
    });
  });
  squares = BlockSum<Threads>(squares, scratch);
  if (threadIdx.x != 0) return;
  float* to = parts + row / c * 3 * c + row % c;
  to[0] = count;
  to[c] = mean;
  to[2 * c] = squares;
}

// parts [n, 2, c]: the sums over a plane of dy, and of dy (x - mean) rstd. Grid, shared memory and
// order as above.
template <int Threads, bool kAligned, class T>
__global__ void __launch_bounds__(Threads)
    PlaneGradientSumsKernel(const T* x, const T* dy, const float* mean, const float* rstd,
                            int64_t c, int64_t size, float* parts) {
  constexpr int N = kPackSize<T>;
  __shared__ float scratch[Threads / kWarpSize];
  const int64_t row = blockIdx.x, channel = row % c;
  const float centre = mean[channel];
  float sum = 0, product = 0;
  ForEachPack<Threads, N, 0>(size, [&](int, int64_t at) {
    const Packed<T> v = LoadRow<kAligned, N>(x + row * size, at, size);
    const Packed<T> g = LoadRow<kAligned, N>(dy + row * size, at, size);
    ForEachElement<kAligned, N>(at, size, [&](int i) {
      sum += ToFloat(g[i]);
      product += ToFloat(g[i]) * (ToFloat(v[i]) - centre);
    });
  });
  sum = BlockSum<Threads>(sum, scratch);
  product = BlockSum<Threads>(product, scratch);
  if (threadIdx.x != 0) return;
  float* to = parts + row / c * 2 * c + channel;
  to[0] = sum;
  to[c] = rstd[channel] * product;
}

// ---- Elementwise over [N, C, S]. ----

// Calls f(element, channel) for N neighbours, with one division where they share a channel.
template <int N, class F>
__device__ inline void ForEachChannel(int64_t at, int64_t n, int64_t c, int64_t size, const F& f) {
  const int64_t first = at / size;
  const bool one = (at + N - 1) / size == first;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (at + i < n) f(i, (one ? first : (at + i) / size) % c);
  }
}

// y = (x - mean) rstd weight + bias. One pass over memory.
// Grid: one thread per pack. No shared memory; every element by one thread.
template <class T, class W, class B>
__global__ void __launch_bounds__(kElementwiseThreads)
    NormalizeKernel(const T* x, const float* mean, const float* rstd, const W* weight,
                    const B* bias, int64_t n, int64_t c, int64_t size, T* y, bool aligned) {
  constexpr int N = kPackSize<T>;
  const int64_t at = GlobalThread() * N;
  if (at >= n) return;
  const bool whole = aligned && at + N <= n;
  const int count = CountWithin<N>(at, n);
  Packed<T> v = whole ? Load(x + at) : LoadSome(x + at, count, Convert<T>(0.0f));
  ForEachChannel<N>(at, n, c, size, [&](int i, int64_t k) {
    const float scale = weight != nullptr ? rstd[k] * ToFloat(weight[k]) : rstd[k];
    const float shift = bias != nullptr ? ToFloat(bias[k]) : 0.0f;
    v[i] = Convert<T>((ToFloat(v[i]) - mean[k]) * scale + shift);
  });
  if (whole) {
    Store(y + at, v);
  } else {
    StoreSome(y + at, v, count);
  }
}

// dx = weight rstd (dy - sums[0] / n - xhat sums[1] / n), or += that; sums null: dx = weight rstd
// dy. One pass over memory. Grid as above.
template <class T, class W>
__global__ void __launch_bounds__(kElementwiseThreads)
    BatchNormInputGradientKernel(const T* x, const T* dy, const W* weight, const float* mean,
                                 const float* rstd, const float* sums, const float* counts,
                                 int64_t n, int64_t c, int64_t size, T* dx, bool accumulate,
                                 bool aligned) {
  constexpr int N = kPackSize<T>;
  const int64_t at = GlobalThread() * N;
  if (at >= n) return;
  const bool whole = aligned && at + N <= n;
  const int count = CountWithin<N>(at, n);
  const auto load = [&](const T* p) {
    return whole ? Load(p + at) : LoadSome(p + at, count, Convert<T>(0.0f));
  };
  const Packed<T> v = load(x), g = load(dy);
  Packed<T> out = accumulate ? load(dx) : g;
  ForEachChannel<N>(at, n, c, size, [&](int i, int64_t k) {
    const float scale = weight != nullptr ? rstd[k] * ToFloat(weight[k]) : rstd[k];
    const float mean_dy = sums != nullptr ? sums[k] / counts[k] : 0.0f;
    // xhat mean(dy xhat) = (x - mean) slope
    const float slope = sums != nullptr ? rstd[k] * (sums[c + k] / counts[k]) : 0.0f;
    const float gradient = scale * (ToFloat(g[i]) - mean_dy - (ToFloat(v[i]) - mean[k]) * slope);
    out[i] = Convert<T>(accumulate ? ToFloat(out[i]) + gradient : gradient);
  });
  if (whole) {
    Store(dx + at, out);
  } else {
    StoreSome(dx + at, out, count);
  }
}

// ---- Statistics. ----

struct FinishKernelArgs {
  const float* moments;
  int64_t c;
  float eps;
  double momentum;
  float *running_mean, *running_var;  // or null
  int64_t* batches;                   // or null
  float *mean, *rstd;
};

// Grid: one block, so that the number of batches is read before it is incremented. No shared
// memory.
__global__ void __launch_bounds__(kElementwiseThreads) FinishKernel(FinishKernelArgs a) {
  double factor = a.momentum;
  if (a.batches != nullptr) {
    const int64_t batches = *a.batches + 1;
    if (factor < 0) factor = 1.0 / static_cast<double>(batches);
    __syncthreads();
    if (threadIdx.x == 0) *a.batches = batches;
  }
  for (int64_t k = threadIdx.x; k < a.c; k += blockDim.x) {
    const float n = a.moments[k], squares = a.moments[2 * a.c + k];
    a.mean[k] = a.moments[a.c + k];
    a.rstd[k] = 1.0f / sqrtf(squares / n + a.eps);
    if (a.running_mean == nullptr || n < 2) continue;
    const auto blend = [factor](float& running, double value) {
      running = static_cast<float>((1 - factor) * static_cast<double>(running) + factor * value);
    };
    blend(a.running_mean[k], static_cast<double>(a.mean[k]));
    blend(a.running_var[k], static_cast<double>(squares) / (static_cast<double>(n) - 1));
  }
}

// Grid: one thread per channel. No shared memory.
__global__ void __launch_bounds__(kElementwiseThreads)
    FromRunningKernel(const float* running_mean, const float* running_var, int64_t c, float eps,
                      float* mean, float* rstd) {
  const int64_t k = GlobalThread();
  if (k >= c) return;
  mean[k] = running_mean[k];
  rstd[k] = 1.0f / sqrtf(running_var[k] + eps);
}

// ---- The slots. ----

// Joins parts [items, rows, c] by `kernel`; without items, zeros.
void Reduce(const LaunchName& name, void (*kernel)(float*, int64_t, int64_t, float*), Stream stream,
            const Tensor& parts, const Tensor& out) {
  const int64_t c = parts.dim(2);
  LaunchThreads(name, kernel, c, stream, Data<float>(parts), parts.dim(0), c, Data<float>(out));
}

// Calls f(tag, threads, aligned) for a kernel with one block per plane of x (and dy).
template <class F>
void DispatchPlanes(const Tensor& x, const Tensor& dy, const F& f) {
  DispatchFloat("batch_norm", x.dtype(), [&]<class T>(TypeTag<T> tag) {
    const int64_t size = x.dim(2);
    DispatchRowThreads(DivideUp(size, kPackSize<T>), [&](auto threads) {
      DispatchBool(AlignedRows(size, Data<T>(x), Data<T>(dy)),
                   [&](auto aligned) { f(tag, threads, aligned); });
    });
  });
}

void MomentsCuda(Stream stream, const Tensor& x, const Tensor& moments) {
  const int64_t n = x.dim(0), c = x.dim(1);
  const Tensor parts = Tensor::Empty({n, 3, c}, DType::kF32, x.device());
  DispatchPlanes(x, x, [&]<class T>(TypeTag<T>, auto threads, auto aligned) {
    constexpr int kThreads = decltype(threads)::value;
    Launch({"batch_norm_moments", x}, PlaneMomentsKernel<kThreads, decltype(aligned)::value, T>,
           Blocks(n * c, 1), kThreads, 0, stream, Data<T>(x), c, x.dim(2), Data<float>(parts));
  });
  Reduce({"batch_norm_moments", x}, JoinMomentsKernel, stream, parts, moments);
}

void JoinCuda(Stream stream, const Tensor& parts, const Tensor& moments) {
  Reduce({"batch_norm_join", parts}, JoinMomentsKernel, stream, parts, moments);
}

void FinishCuda(Stream stream, const BatchNormFinishArgs& args) {
  FinishKernelArgs a{};
  a.moments = Data<float>(args.moments);
  a.c = args.moments.dim(1);
  a.eps = static_cast<float>(args.eps);
  a.momentum = args.momentum;
  a.running_mean = DataOrNull<float>(args.running_mean);
  a.running_var = DataOrNull<float>(args.running_var);
  a.batches = DataOrNull<int64_t>(args.batches);
  a.mean = Data<float>(args.mean);
  a.rstd = Data<float>(args.rstd);
  Launch({"batch_norm_finish", args.moments}, FinishKernel, 1, kElementwiseThreads, 0, stream, a);
}

void FromRunningCuda(Stream stream, const Tensor& running_mean, const Tensor& running_var,
                     double eps, const Tensor& mean, const Tensor& rstd) {
  const int64_t c = mean.numel();
  LaunchThreads({"batch_norm_from_running", running_mean}, FromRunningKernel, c, stream,
                Data<float>(running_mean), Data<float>(running_var), c, static_cast<float>(eps),
                Data<float>(mean), Data<float>(rstd));
}

// Calls f(TypeTag<W>) with the type of a parameter of x's dtype or f32; f32 where it is undefined.
template <class T, class F>
void DispatchParameter(const Tensor& parameter, const F& f) {
  if (parameter.defined() && parameter.dtype() != DType::kF32) return f(TypeTag<T>());
  f(TypeTag<float>());
}

void NormalizeCuda(Stream stream, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                   const Tensor& weight, const Tensor& bias, const Tensor& y) {
  DispatchFloat("batch_norm", x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchParameter<T>(weight, [&]<class W>(TypeTag<W>) {
      DispatchParameter<T>(bias, [&]<class B>(TypeTag<B>) {
        const int64_t n = x.numel();
        LaunchThreads({"batch_norm_normalize", x}, NormalizeKernel<T, W, B>,
                      DivideUp(n, kPackSize<T>), stream, Data<T>(x), Data<float>(mean),
                      Data<float>(rstd), DataOrNull<W>(weight), DataOrNull<B>(bias), n, x.dim(1),
                      x.dim(2), Data<T>(y), AllAligned16(Data<T>(x), Data<T>(y)));
      });
    });
  });
}

void BackwardSumsCuda(Stream stream, const Tensor& x, const Tensor& dy, const Tensor& mean,
                      const Tensor& rstd, const Tensor& sums) {
  const int64_t n = x.dim(0), c = x.dim(1);
  const Tensor parts = Tensor::Empty({n, 2, c}, DType::kF32, x.device());
  DispatchPlanes(x, dy, [&]<class T>(TypeTag<T>, auto threads, auto aligned) {
    constexpr int kThreads = decltype(threads)::value;
    Launch({"batch_norm_backward_sums", x},
           PlaneGradientSumsKernel<kThreads, decltype(aligned)::value, T>, Blocks(n * c, 1),
           kThreads, 0, stream, Data<T>(x), Data<T>(dy), Data<float>(mean), Data<float>(rstd), c,
           x.dim(2), Data<float>(parts));
  });
  Reduce({"batch_norm_backward_sums", x}, AddPartsKernel, stream, parts, sums);
}

void AddCuda(Stream stream, const Tensor& parts, const Tensor& sums) {
  Reduce({"batch_norm_add", parts}, AddPartsKernel, stream, parts, sums);
}

void BackwardInputCuda(Stream stream, const BatchNormBackwardArgs& args) {
  DispatchFloat("batch_norm", args.x.dtype(), [&]<class T>(TypeTag<T>) {
    DispatchParameter<T>(args.weight, [&]<class W>(TypeTag<W>) {
      const int64_t n = args.x.numel();
      const T *x = Data<T>(args.x), *dy = Data<T>(args.dy);
      T* dx = Data<T>(args.dx.tensor);
      LaunchThreads({"batch_norm_backward_input", args.x}, BatchNormInputGradientKernel<T, W>,
                    DivideUp(n, kPackSize<T>), stream, x, dy, DataOrNull<W>(args.weight),
                    Data<float>(args.mean), Data<float>(args.rstd), DataOrNull<float>(args.sums),
                    DataOrNull<float>(args.moments), n, args.x.dim(1), args.x.dim(2), dx,
                    args.dx.accumulate, AllAligned16(x, dy, dx));
    });
  });
}

LS_REGISTER(batch_norm_moments, DeviceType::kCuda, MomentsCuda);
LS_REGISTER(batch_norm_join, DeviceType::kCuda, JoinCuda);
LS_REGISTER(batch_norm_finish, DeviceType::kCuda, FinishCuda);
LS_REGISTER(batch_norm_from_running, DeviceType::kCuda, FromRunningCuda);
LS_REGISTER(batch_norm_normalize, DeviceType::kCuda, NormalizeCuda);
LS_REGISTER(batch_norm_backward_sums, DeviceType::kCuda, BackwardSumsCuda);
LS_REGISTER(batch_norm_add, DeviceType::kCuda, AddCuda);
LS_REGISTER(batch_norm_backward_input, DeviceType::kCuda, BackwardInputCuda);

}  // namespace
}  // namespace lockstep::cuda
