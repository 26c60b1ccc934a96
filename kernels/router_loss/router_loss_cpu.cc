#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/reduce.h"
#include "kernels/router_loss/router_loss.h"

namespace lockstep::cpu {
namespace {

// A token's shares of the scores, and the logarithm of the sum of its logits' exponentials.
template <class T>
struct Shares {
  std::vector<T> of, score;  // of: add up to 1
  T log_sum = 0, sum = 1;    // sum: of the scores

  void Compute(RouterScore kind, const T* logits, int64_t e) {
    of.resize(static_cast<size_t>(e));
    score.resize(static_cast<size_t>(e));
    const T max = MaxOver<T>(e, [=](int64_t i) { return logits[i]; });
    for (int64_t i = 0; i < e; ++i) score[i] = Exp(logits[i] - max);
    sum = PairwiseSum<T>(0, e, [&](int64_t i) { return score[i]; });
    log_sum = max + Log(sum);
    if (kind == RouterScore::kSigmoid) {
      for (int64_t i = 0; i < e; ++i) score[i] = T(1) / (T(1) + Exp(-logits[i]));
      sum = PairwiseSum<T>(0, e, [&](int64_t i) { return score[i]; });
      sum = std::max(sum, static_cast<T>(kLeastGateSum));
    }
    for (int64_t i = 0; i < e; ++i) of[i] = score[i] / sum;
  }
  T WeightedBy(const T* weights) const {
    return PairwiseSum<T>(0, static_cast<int64_t>(of.size()),
                          [&](int64_t i) { return of[i] * weights[i]; });
  }
};

// For one sequence.
template <class T>
T LossOf(const RouterLossOptions& options, const T* logits, const int32_t* experts, int64_t t,
         int64_t e, int64_t k, T* weights) {
  std::vector<int64_t> count(static_cast<size_t>(e));
  for (int64_t i = 0; i < t * k; ++i) ++count[experts[i]];
  for (int64_t i = 0; i < e; ++i) {
    weights[i] = static_cast<T>(options.balance * static_cast<double>(e * count[i]) /
                                static_cast<double>(std::max<int64_t>(1, k * t)));
  }
  std::vector<T> losses(static_cast<size_t>(t));
  Shares<T> shares;
  for (int64_t i = 0; i < t; ++i) {
    shares.Compute(options.score, logits + i * e, e);
    losses[i] =
        shares.WeightedBy(weights) + static_cast<T>(options.z) * shares.log_sum * shares.log_sum;
  }
  return PairwiseSum<T>(0, t, [&](int64_t i) { return losses[i]; });
}

void RouterLossForwardCpu(Stream, const RouterLossArgs& args) {
  const int64_t b = args.logits.dim(0), t = args.logits.dim(1), e = args.logits.dim(2);
  const int64_t k = args.experts.dim(2);
  DispatchWide(args.logits.dtype(), [&]<class T>(TypeTag<T>) {
    const T* logits = args.logits.data<T>();
    const int32_t* experts = args.experts.data<int32_t>();
    T* weights = args.weights.data<T>();
    std::vector<T> losses(static_cast<size_t>(b));
    ParallelForEach(b, 1, [&](int64_t s) {
      losses[s] =
          LossOf(args.options, logits + s * t * e, experts + s * t * k, t, e, k, weights + s * e);
    });
    *args.loss.data<T>() = PairwiseSum<T>(0, b, [&](int64_t i) { return losses[i]; });
  });
}

// d logit_i of the token whose shares these are.
template <class T>
T Derivative(const RouterLossOptions& options, const Shares<T>& shares, const T* logits,
             const T* weights, T mean, int64_t i) {
  const T balance = shares.of[i] * (weights[i] - mean);
  const T z = T(2) * static_cast<T>(options.z) * shares.log_sum;
  if (options.score == RouterScore::kSoftmax) return balance + z * shares.of[i];
  return balance * (T(1) - shares.score[i]) + z * Exp(logits[i] - shares.log_sum);
}

void RouterLossBackwardCpu(Stream, const RouterLossBackwardArgs& args) {
  const int64_t t = args.logits.dim(1), e = args.logits.dim(2);
  DispatchWide(args.logits.dtype(), [&]<class T>(TypeTag<T>) {
    const T *logits = args.logits.data<T>(), *weights = args.weights.data<T>();
    const T upstream = *args.dloss.data<T>();
    T* dlogits = args.dlogits.data<T>();
    ParallelFor(args.logits.dim(0) * t, GrainOf(4 * e), [=, &args](int64_t begin, int64_t end) {
      Shares<T> shares;
      for (int64_t row = begin; row < end; ++row) {
        const T *of_row = logits + row * e, *of_sequence = weights + row / t * e;
        shares.Compute(args.options.score, of_row, e);
        const T mean = shares.WeightedBy(of_sequence);
        for (int64_t i = 0; i < e; ++i) {
          const T d = upstream * Derivative(args.options, shares, of_row, of_sequence, mean, i);
          T& out = dlogits[row * e + i];
          out = args.accumulate ? out + d : d;
        }
      }
    });
  });
}

LS_REGISTER(router_loss_forward, DeviceType::kCpu, RouterLossForwardCpu);
LS_REGISTER(router_loss_backward, DeviceType::kCpu, RouterLossBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
