#include "core/cuda/launch.h"
#include "kernels/cuda/online_softmax.cuh"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

namespace lockstep::cuda {
namespace {

constexpr int kThreads = 256;
// Of the blocks of rows of more than kLongRow classes, which an SM has two of: the rows of all
// blocks then fit into the L2 cache, 26 MB on an H100 for 50304 logits of bf16.
constexpr int kLongRowThreads = 768;
constexpr int64_t kLongRow = 16384;
constexpr int kReduceThreads = 512;

__device__ inline float Log(float x) { return logf(x); }
__device__ inline double Log(double x) { return log(x); }

// out_j = (z e^(row_j - shift) - [j == hit]) * factor, by the threads of a block, from the end: of
// a row that they have just read it is the likeliest to be in a cache. `out` may be `row`. A z of 1
// does not change a bit.
template <int Threads, bool kAligned, class T>
__device__ inline void WriteGradientRow(const T* row, int64_t v, float shift, float z, float factor,
                                        int64_t hit, T* out) {
  constexpr int N = kPackSize<T>, kStep = Threads * N;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * N;
  for (int64_t at = first + (DivideUp(v - first, kStep) - 1) * kStep; at >= first; at -= kStep) {
    const Packed<T> x = LoadRow<kAligned, N>(row, at, v);
    Packed<T> g;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float here = at + k == hit ? 1.0f : 0.0f;
      g[k] = Convert<T>(fmaf(expf(ToFloat(x[k]) - shift), z, -here) * factor);
    }
    StoreRow<kAligned>(out, at, v, g);
  }
}

// The loss and the log-sum-exp of a row and, where dlogits is not null, their gradient, which may
// take the place of the logits. Reads the logits once, and for the gradient again, from L2.
// Grid: one block per row. Shared memory: two f32 per warp. Deterministic: the order of the sum
// depends only on v. A target outside [0, classes) cannot be reported to the host: its loss is NaN.
// Out: f32, or f64 for a part of the classes.
template <int Threads, bool kAligned, class T, class I, class Out>
__global__ void __launch_bounds__(Threads, Threads > kThreads ? 2 : 0)
    CrossEntropyForwardKernel(const T* logits, const I* targets, int64_t v, int64_t first,
                              int64_t classes, int64_t ignore_index, float z_loss, Out* losses,
                              Out* log_sum_exp, T* dlogits) {
  __shared__ float scratch[2 * Threads / kWarpSize];
  const int64_t i = blockIdx.x;
  const T* row = logits + i * v;
  const int64_t target = targets[i];
  const bool ignored = target == ignore_index;
  const bool here = !ignored && target >= first && target < first + v;
  // Before the barriers of the sum, after which other threads may write there.
  const float at_target = here ? ToFloat(row[target - first]) : 0.0f;
  const MaxAndSum all = RowMaxAndSum<Threads, kAligned>(row, v, scratch);
  if (threadIdx.x != 0 && dlogits == nullptr) return;
  const Out log_sum = static_cast<Out>(all.max) + Log(static_cast<Out>(all.sum));
  if (threadIdx.x == 0) {
    log_sum_exp[i] = log_sum;
    const bool known = ignored || (target >= 0 && target < classes);
    losses[i] = here    ? log_sum - static_cast<Out>(at_target)
                : known ? Out(0)
                        : static_cast<Out>(NAN);
  }
  if (dlogits == nullptr) return;
  const auto shift = static_cast<float>(log_sum);
  WriteGradientRow<Threads, kAligned>(row, v, shift, ZFactor(z_loss, shift), ignored ? 0.0f : 1.0f,
                                      target - first, dlogits + i * v);
}

// Two parts of the classes become one: see CrossEntropyJoinArgs.
// Grid: one thread per row. No shared memory.
template <class I>
__global__ void __launch_bounds__(kThreads)
    CrossEntropyJoinKernel(const I* targets, int64_t n, int64_t ignore_index, int64_t begin,
                           int64_t middle, int64_t end, const double* other_losses,
                           const double* other_log_sum_exp, double* losses, double* log_sum_exp) {
  const int64_t i = GlobalThread();
  if (i >= n) return;
  const double a = log_sum_exp[i], b = other_log_sum_exp[i];
  const double both = fmax(a, b) + log1p(exp(-fabs(a - b)));
  const int64_t target = targets[i];
  if (target == ignore_index) {
    losses[i] = 0;
  } else if (target >= begin && target < middle) {
    losses[i] += both - a;
  } else if (target >= middle && target < end) {
    losses[i] = other_losses[i] + (both - b);
  }
  log_sum_exp[i] = both;
}

// losses_i += z_loss log_sum_exp_i^2, but for ignored rows.
// Grid: one thread per row. No shared memory.
template <class I>
__global__ void __launch_bounds__(kThreads)
    CrossEntropyAddZKernel(const I* targets, int64_t n, int64_t ignore_index, float z_loss,
                           const float* log_sum_exp, float* losses) {
  const int64_t i = GlobalThread();
  if (i >= n || targets[i] == ignore_index) return;
  losses[i] = fmaf(z_loss * log_sum_exp[i], log_sum_exp[i], losses[i]);
}

// total = the losses' sum times scale; scale = 1, or 1 / the number of targets that count.
// Grid: one block. Shared memory: an f64 and an i64 per warp. Deterministic: thread t adds losses
// t, t + kReduceThreads, ... in f64, and the block their sums.
template <class I>
__global__ void __launch_bounds__(kReduceThreads)
    CrossEntropyReduceKernel(const float* losses, const I* targets, int64_t n, int64_t ignore_index,
                             bool mean, float* total, float* scale) {
  __shared__ double sums[kReduceThreads / kWarpSize];
  __shared__ int64_t counts[kReduceThreads / kWarpSize];
  double sum = 0;
  int64_t count = 0;
  for (int64_t i = threadIdx.x; i < n; i += kReduceThreads) {
    sum += static_cast<double>(losses[i]);
    count += targets[i] != ignore_index;
  }
  sum = BlockSum<kReduceThreads>(sum, sums);
  count = BlockSum<kReduceThreads>(count, counts);
  if (threadIdx.x != 0) return;
  const double factor = !mean ? 1.0 : count > 0 ? 1.0 / static_cast<double>(count) : 0.0;
  *scale = static_cast<float>(factor);
  *total = static_cast<float>(sum * factor);
}

// dlogits_ij = (e^(logits_ij - log_sum_exp_i) - [j == target_i]) * upstream_i * scale. dlogits may
// be the logits. Reads the logits once, and the upstream gradient from memory.
// Grid: one block per row. No shared memory; every element by one thread.
template <bool kAligned, class T, class I>
__global__ void __launch_bounds__(kThreads)
    CrossEntropyBackwardKernel(const T* logits, const I* targets, const float* log_sum_exp,
                               int64_t v, int64_t first, int64_t ignore_index, float z_loss,
                               const float* upstream, int64_t upstream_step, const float* scale,
                               T* dlogits) {
  const int64_t i = blockIdx.x;
  const int64_t target = targets[i];
  const float factor = target == ignore_index ? 0.0f : upstream[i * upstream_step] * *scale;
  const float shift = log_sum_exp[i];
  WriteGradientRow<kThreads, kAligned>(logits + i * v, v, shift, ZFactor(z_loss, shift), factor,
                                       target - first, dlogits + i * v);
}

// Calls f with the element types of logits and targets.
template <class F>
void Dispatch(const Tensor& logits, const Tensor& targets, const F& f) {
  DispatchFloat("softmax_cross_entropy", logits.dtype(), [&](auto tag) {
    DispatchIndex("softmax_cross_entropy", targets.dtype(),
                  [&](auto index_tag) { f(tag, index_tag); });
  });
}

void ForwardCuda(Stream stream, const CrossEntropyForwardArgs& args) {
  Dispatch(args.logits, args.targets, [&]<class T, class I>(TypeTag<T>, TypeTag<I>) {
    const T* logits = Data<T>(args.logits);
    T* dlogits = args.dlogits.defined() ? Data<T>(args.dlogits) : nullptr;
    const int64_t v = args.logits.dim(1);
    DispatchBool(AlignedRows(v, logits, dlogits), [&](auto aligned) {
      const auto launch = [&]<class Out>(auto threads, TypeTag<Out>) {
        constexpr int kBlock = decltype(threads)::value;
        Launch({"cross_entropy_forward", args.logits, args.targets},
               CrossEntropyForwardKernel<kBlock, decltype(aligned)::value, T, I, Out>,
               Blocks(args.targets.numel(), 1), kBlock, 0, stream, logits, Data<I>(args.targets), v,
               args.part.first, args.part.Whole(v), args.ignore_index,
               static_cast<float>(args.z_loss), Data<Out>(args.losses), Data<Out>(args.log_sum_exp),
               dlogits);
      };
      const auto with_threads = [&](auto out_tag) {
        if (v <= kLongRow) return launch(std::integral_constant<int, kThreads>(), out_tag);
        launch(std::integral_constant<int, kLongRowThreads>(), out_tag);
      };
      DispatchWide(args.log_sum_exp.dtype(), with_threads);
    });
  });
}

void JoinCuda(Stream stream, const CrossEntropyJoinArgs& args) {
  DispatchIndex("softmax_cross_entropy", args.targets.dtype(), [&]<class I>(TypeTag<I>) {
    const int64_t n = args.targets.numel();
    Launch({"cross_entropy_join", args.losses}, CrossEntropyJoinKernel<I>, Blocks(n, kThreads),
           kThreads, 0, stream, Data<I>(args.targets), n, args.ignore_index, args.begin,
           args.middle, args.end, Data<double>(args.other_losses),
           Data<double>(args.other_log_sum_exp), Data<double>(args.losses),
           Data<double>(args.log_sum_exp));
  });
}

void AddZCuda(Stream stream, const CrossEntropyAddZArgs& args) {
  DispatchIndex("softmax_cross_entropy", args.targets.dtype(), [&]<class I>(TypeTag<I>) {
    const int64_t n = args.targets.numel();
    Launch({"cross_entropy_add_z", args.losses}, CrossEntropyAddZKernel<I>, Blocks(n, kThreads),
           kThreads, 0, stream, Data<I>(args.targets), n, args.ignore_index,
           static_cast<float>(args.z_loss), Data<float>(args.log_sum_exp),
           Data<float>(args.losses));
  });
}

void ReduceCuda(Stream stream, const CrossEntropyReduceArgs& args) {
  DispatchIndex("softmax_cross_entropy", args.targets.dtype(), [&]<class I>(TypeTag<I>) {
    Launch({"cross_entropy_reduce", args.losses}, CrossEntropyReduceKernel<I>, 1, kReduceThreads, 0,
           stream, Data<float>(args.losses), Data<I>(args.targets), args.targets.numel(),
           args.ignore_index, args.mean, Data<float>(args.total), Data<float>(args.scale));
  });
}

void BackwardCuda(Stream stream, const CrossEntropyBackwardArgs& args) {
  Dispatch(args.logits, args.targets, [&]<class T, class I>(TypeTag<T>, TypeTag<I>) {
    const T* logits = Data<T>(args.logits);
    T* dlogits = Data<T>(args.dlogits);
    const int64_t v = args.logits.dim(1), upstream_step = args.upstream.numel() == 1 ? 0 : 1;
    DispatchBool(AlignedRows(v, logits, dlogits), [&](auto aligned) {
      Launch({"cross_entropy_backward", args.logits, args.targets},
             CrossEntropyBackwardKernel<decltype(aligned)::value, T, I>,
             Blocks(args.targets.numel(), 1), kThreads, 0, stream, logits, Data<I>(args.targets),
             Data<float>(args.log_sum_exp), v, args.part.first, args.ignore_index,
             static_cast<float>(args.z_loss), Data<float>(args.upstream), upstream_step,
             Data<float>(args.scale), dlogits);
    });
  });
}

LS_REGISTER(cross_entropy_forward, DeviceType::kCuda, ForwardCuda);
LS_REGISTER(cross_entropy_join, DeviceType::kCuda, JoinCuda);
LS_REGISTER(cross_entropy_add_z, DeviceType::kCuda, AddZCuda);
LS_REGISTER(cross_entropy_reduce, DeviceType::kCuda, ReduceCuda);
LS_REGISTER(cross_entropy_backward, DeviceType::kCuda, BackwardCuda);

}  // namespace
}  // namespace lockstep::cuda
