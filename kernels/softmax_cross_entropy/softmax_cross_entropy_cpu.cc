#include "kernels/cpu.h"
#include "kernels/cpu_math.h"
#include "kernels/cpu_reduce.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"

namespace lockstep::cpu {
namespace {

// Rows per chunk: some 16k elements.
int64_t RowGrain(int64_t classes) { return std::max<int64_t>(1, kElementwiseGrain / classes); }

template <class A, class T>
A RowMax(const T* row, int64_t n) {
  A largest = Convert<A>(row[0]);
  for (int64_t j = 1; j < n; ++j) {
    const A x = Convert<A>(row[j]);
    largest = x > largest ? x : largest;
  }
  return largest;
}

// Calls f with the element types of logits and targets.
template <class F>
void Dispatch(const Tensor& logits, const Tensor& targets, const F& f) {
  DispatchFloat("softmax_cross_entropy", logits.dtype(), [&](auto float_tag) {
    DispatchIndex("softmax_cross_entropy", targets.dtype(),
                  [&](auto index_tag) { f(float_tag, index_tag); });
  });
}

void ForwardCpu(Stream, const CrossEntropyForwardArgs& args) {
  Dispatch(args.logits, args.targets, [&](auto float_tag, auto index_tag) {
    using T = typename decltype(float_tag)::type;
    using I = typename decltype(index_tag)::type;
    using A = Acc<T>;
    const int64_t v = args.logits.dim(1);
    const T* logits = args.logits.data<T>();
    const I* targets = args.targets.data<I>();
    A* losses = args.losses.data<A>();
    A* log_sum_exp = args.log_sum_exp.data<A>();
    const int64_t ignore = args.ignore_index;
    ParallelFor(args.targets.numel(), RowGrain(v), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t target = targets[i];
        const T* row = logits + i * v;
        LS_CHECK(target == ignore || (target >= 0 && target < v), "softmax_cross_entropy: target ",
                 target, " at position ", i, " is outside of the ", v,
                 " classes and is not ignore_index = ", ignore);
        const A largest = RowMax<A>(row, v);
        const A sum = SumOver<A>(v, [=](int64_t j) { return Exp(Convert<A>(row[j]) - largest); });
        log_sum_exp[i] = largest + std::log(sum);
        losses[i] = target == ignore ? A(0) : log_sum_exp[i] - Convert<A>(row[target]);
      }
    });
  });
}

void ReduceCpu(Stream, const CrossEntropyReduceArgs& args) {
  Dispatch(args.losses, args.targets, [&](auto float_tag, auto index_tag) {
    using I = typename decltype(index_tag)::type;
    using A = Acc<typename decltype(float_tag)::type>;
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
  Dispatch(args.logits, args.targets, [&](auto float_tag, auto index_tag) {
    using T = typename decltype(float_tag)::type;
    using I = typename decltype(index_tag)::type;
    using A = Acc<T>;
    const int64_t v = args.logits.dim(1);
    const T* logits = args.logits.data<T>();
    const I* targets = args.targets.data<I>();
    const A* log_sum_exp = args.log_sum_exp.data<A>();
    const A* upstream = args.upstream.data<A>();
    const int64_t upstream_step = args.upstream.numel() == 1 ? 0 : 1;
    const A scale = *args.scale.data<A>();
    T* dlogits = args.dlogits.data<T>();
    const int64_t ignore = args.ignore_index;
    const bool accumulate = args.accumulate;
    ParallelFor(args.targets.numel(), RowGrain(v), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t target = targets[i];
        const A factor = target == ignore ? A(0) : upstream[i * upstream_step] * scale;
        const T* row = logits + i * v;
        T* out = dlogits + i * v;
        const A shift = log_sum_exp[i];
        const A at_target = target == ignore ? A(0) : Convert<A>(row[target]);
        const A before = accumulate && target != ignore ? Convert<A>(out[target]) : A(0);
        for (int64_t j = 0; j < v; ++j) {
          const A d = Exp(Convert<A>(row[j]) - shift) * factor;
          out[j] = Convert<T>(accumulate ? Convert<A>(out[j]) + d : d);
        }
        // `row` may be `out`: what stood at the target was read before.
        if (target != ignore) {
          out[target] = Convert<T>(before + (Exp(at_target - shift) - A(1)) * factor);
        }
      }
    });
  });
}

LS_REGISTER(cross_entropy_forward, DeviceType::kCpu, ForwardCpu);
LS_REGISTER(cross_entropy_reduce, DeviceType::kCpu, ReduceCpu);
LS_REGISTER(cross_entropy_backward, DeviceType::kCpu, BackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
