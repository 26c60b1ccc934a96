#include "kernels/checks.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

namespace lockstep::cpu {
namespace {

// A row as A: itself, or converted into memory that lasts until the thread's next call. Compilers
// vectorise neither maxima nor sums of what they must convert first.
template <class A, class T>
const A* Widened(const T* row, int64_t n) {
  if constexpr (std::is_same_v<A, T>) {
    return row;
  } else {
    static thread_local Scratch<A> scratch;
    A* const wide = scratch.Get(n);
    for (int64_t j = 0; j < n; ++j) wide[j] = Convert<A>(row[j]);
    return wide;
  }
}

// In lanes, so that compilers vectorise it. Ignores NaN: the sum of exponentials picks it up.
template <class A>
[[gnu::noinline]] A RowMax(const A* row, int64_t n) {
  constexpr int kLanes = 16;
  A lanes[kLanes];
  for (A& lane : lanes) lane = row[0];
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) {
    const A* at = row + j;
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = at[lane] > lanes[lane] ? at[lane] : lanes[lane];
    }
  }
  A largest = lanes[0];
  for (A lane : lanes) largest = lane > largest ? lane : largest;
  for (int64_t j = whole; j < n; ++j) largest = row[j] > largest ? row[j] : largest;
  return largest;
}

// The sum of exp(row_j - shift), in functions of plain arguments: inside the loop over rows
// compilers do not vectorise it.
template <class A>
[[gnu::noinline]] A SumOfExponentials(const A* row, int64_t n, A shift) {
  return SumOver<A>(n, [=](int64_t j) { return Exp(row[j] - shift); });
}

// (z softmax - [j == hit]) * factor of a row; hit < 0: none. `out` may be `row`, so what is at the
// hit is read before anything is written. A z of 1 does not change a bit.
template <class A, class In, class T>
void GradientRow(const In* row, int64_t n, A shift, A z, A factor, int64_t hit, T* out) {
  const A at_hit = hit >= 0 ? Convert<A>(row[hit]) : A(0), of_softmax = z * factor;
  Vectorised([=] {
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j) {
      out[j] = Convert<T>(Exp(Convert<A>(row[j]) - shift) * of_softmax);
    }
  });
  if (hit >= 0) out[hit] = Convert<T>((Exp(at_hit - shift) * z - A(1)) * factor);
}

// Calls f with the element types of logits and targets.
template <class F>
void Dispatch(const Tensor& logits, const Tensor& targets, const F& f) {
  DispatchFloat("softmax_cross_entropy", logits.dtype(), [&](auto float_tag) {
    DispatchIndex("softmax_cross_entropy", targets.dtype(),
                  [&](auto index_tag) { f(float_tag, index_tag); });
  });
}

// T, I: the types of logits and targets; Out: that of losses and log-sum-exps.
template <class T, class I, class Out>
void Forward(const CrossEntropyForwardArgs& args) {
  using A = Acc<T>;
  const int64_t v = args.logits.dim(1);
  const T* logits = args.logits.data<T>();
  const I* targets = args.targets.data<I>();
  Out* losses = args.losses.data<Out>();
  Out* log_sum_exp = args.log_sum_exp.data<Out>();
  T* dlogits = args.dlogits.defined() ? args.dlogits.data<T>() : nullptr;
  const int64_t ignore = args.ignore_index, first_row = args.first_row;
  const int64_t classes = args.part.Whole(v), first = args.part.first;
  const auto z_loss = static_cast<A>(args.z_loss);
  ParallelForEach(args.targets.numel(), GrainOf(v), [=](int64_t i) {
    const int64_t target = targets[i];
    const T* row = logits + i * v;
    if (target != ignore && (target < 0 || target >= classes)) {
      ThrowTarget("softmax_cross_entropy", target, first_row + i, classes, ignore);
    }
    const A* wide = Widened<A>(row, v);
    const A largest = RowMax(wide, v);
    const A sum = SumOfExponentials(wide, v, largest);
    const Out log_sum = static_cast<Out>(largest) + Log(static_cast<Out>(sum));
    log_sum_exp[i] = log_sum;
    const bool here = target != ignore && target >= first && target < first + v;
    const A at_target = here ? wide[target - first] : A(0);
    losses[i] = here ? log_sum - static_cast<Out>(at_target) : Out(0);
    if (dlogits == nullptr) return;
    const auto shift = static_cast<A>(log_sum);
    GradientRow(wide, v, shift, ZFactor(z_loss, shift), target == ignore ? A(0) : A(1),
                here ? target - first : -1, dlogits + i * v);
  });
}

void ForwardCpu(Stream, const CrossEntropyForwardArgs& args) {
  Dispatch(args.logits, args.targets, [&]<class T, class I>(TypeTag<T>, TypeTag<I>) {
    if (args.log_sum_exp.dtype() == DType::kF64) return Forward<T, I, double>(args);
    Forward<T, I, Acc<T>>(args);
  });
}

void JoinCpu(Stream, const CrossEntropyJoinArgs& args) {
  DispatchIndex("softmax_cross_entropy", args.targets.dtype(), [&]<class I>(TypeTag<I>) {
    const I* targets = args.targets.data<I>();
    double *losses = args.losses.data<double>(), *log_sum_exp = args.log_sum_exp.data<double>();
    const double *other_losses = args.other_losses.data<double>(),
                 *other_log_sum_exp = args.other_log_sum_exp.data<double>();
    const int64_t ignore = args.ignore_index, begin_class = args.begin, middle = args.middle,
                  end_class = args.end;
    ParallelFor(args.targets.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double a = log_sum_exp[i], b = other_log_sum_exp[i];
        const double both = std::max(a, b) + Log1p(Exp(-std::abs(a - b)));
        const int64_t target = targets[i];
        if (target == ignore) {
          losses[i] = 0;
        } else if (target >= begin_class && target < middle) {
          losses[i] += both - a;
        } else if (target >= middle && target < end_class) {
          losses[i] = other_losses[i] + (both - b);
        }
        log_sum_exp[i] = both;
      }
    });
  });
}

void AddZCpu(Stream, const CrossEntropyAddZArgs& args) {
  Dispatch(args.losses, args.targets, [&]<class T, class I>(TypeTag<T>, TypeTag<I>) {
    using A = Acc<T>;
    const I* targets = args.targets.data<I>();
    A* losses = args.losses.data<A>();
    const A* log_sum_exp = args.log_sum_exp.data<A>();
    const auto z_loss = static_cast<A>(args.z_loss);
    const int64_t ignore = args.ignore_index;
    ParallelFor(args.targets.numel(), kElementwiseGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (targets[i] == ignore) continue;
        losses[i] = std::fma(z_loss * log_sum_exp[i], log_sum_exp[i], losses[i]);
      }
    });
  });
}

void ReduceCpu(Stream, const CrossEntropyReduceArgs& args) {
  Dispatch(args.losses, args.targets, [&]<class I, class T>(TypeTag<T>, TypeTag<I>) {
    using A = Acc<T>;
    const int64_t n = args.targets.numel();
    const A* losses = args.losses.data<A>();
    const I* targets = args.targets.data<I>();
    const int64_t ignore = args.ignore_index;
    double scale = 1;
    if (args.mean) {
      const auto count = SumOver<int64_t>(n, [=](int64_t i) { return targets[i] != ignore; });
      scale = count > 0 ? 1.0 / static_cast<double>(count) : 0.0;
    }
    const double sum = SumOver<double>(n, [=](int64_t i) { return losses[i]; });
    *args.scale.data<A>() = static_cast<A>(scale);
    *args.total.data<A>() = static_cast<A>(sum * scale);
  });
}

void BackwardCpu(Stream, const CrossEntropyBackwardArgs& args) {
  Dispatch(args.logits, args.targets, [&]<class T, class I>(TypeTag<T>, TypeTag<I>) {
    using A = Acc<T>;
    const int64_t v = args.logits.dim(1);
    const T* logits = args.logits.data<T>();
    const I* targets = args.targets.data<I>();
    const A* log_sum_exp = args.log_sum_exp.data<A>();
    const A* upstream = args.upstream.data<A>();
    const int64_t upstream_step = args.upstream.numel() == 1 ? 0 : 1;
    const A scale = *args.scale.data<A>();
    T* dlogits = args.dlogits.data<T>();
    const int64_t ignore = args.ignore_index, first = args.part.first;
    const auto z_loss = static_cast<A>(args.z_loss);
    ParallelForEach(args.targets.numel(), GrainOf(v), [=](int64_t i) {
      const int64_t target = targets[i];
      const A factor = target == ignore ? A(0) : upstream[i * upstream_step] * scale;
      const T* row = logits + i * v;
      T* out = dlogits + i * v;
      const bool here = target != ignore && target >= first && target < first + v;
      GradientRow(row, v, log_sum_exp[i], ZFactor(z_loss, log_sum_exp[i]), factor,
                  here ? target - first : -1, out);
    });
  });
}

LS_REGISTER(cross_entropy_forward, DeviceType::kCpu, ForwardCpu);
LS_REGISTER(cross_entropy_join, DeviceType::kCpu, JoinCpu);
LS_REGISTER(cross_entropy_add_z, DeviceType::kCpu, AddZCpu);
LS_REGISTER(cross_entropy_reduce, DeviceType::kCpu, ReduceCpu);
LS_REGISTER(cross_entropy_backward, DeviceType::kCpu, BackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
