#include <vector>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/reduce.h"
#include "kernels/expert_router/expert_router.h"

namespace lockstep::cpu {
namespace {

template <class T>
T Sigmoid(T x) {
  return T(1) / (T(1) + Exp(-x));
}

void TopExpertsCpu(Stream, const TopExpertsArgs& args) {
  const int64_t n = args.logits.dim(0), e = args.logits.dim(1), k = args.experts.dim(1);
  DispatchWide(args.logits.dtype(), [&]<class T>(TypeTag<T>) {
    const T* logits = args.logits.data<T>();
    const float* bias = args.bias.defined() ? args.bias.data<float>() : nullptr;
    int32_t* experts = args.experts.data<int32_t>();
    ParallelFor(n, GrainOf(4 * e), [=, &args](int64_t begin, int64_t end) {
      std::vector<T> score(static_cast<size_t>(e));
      std::vector<char> taken(static_cast<size_t>(e));
      for (int64_t row = begin; row < end; ++row) {
        // A softmax keeps the order of the logits, so it need not be computed.
        for (int64_t i = 0; i < e; ++i) {
          const T x = logits[row * e + i];
          score[i] = args.score == RouterScore::kSigmoid ? Sigmoid(x) : x;
          if (bias != nullptr) score[i] += static_cast<T>(bias[i]);
          taken[i] = 0;
        }
        for (int64_t slot = 0; slot < k; ++slot) {
          int64_t best = -1;
          for (int64_t i = 0; i < e; ++i) {
            if (!taken[i] && (best < 0 || score[i] > score[best])) best = i;
          }
          taken[best] = 1;
          experts[row * k + slot] = static_cast<int32_t>(best);
        }
      }
    });
  });
}

// What makes the gates of a row from the logits of its chosen experts: numerators, and the factor
// that multiplies each.
template <class T>
struct RowGates {
  std::vector<T> numerators;
  T factor = 1;

  // `all`: the row's logits.
  void Compute(const RouterOptions& options, const T* all, int64_t e, const int32_t* chosen,
               int64_t k) {
    numerators.resize(static_cast<size_t>(k));
    T sum = 1;
    if (options.score == RouterScore::kSoftmax) {
      // With normalise the largest chosen logit would do, but it is the largest of all.
      const T max = MaxOver<T>(e, [=](int64_t i) { return all[i]; });
      for (int64_t j = 0; j < k; ++j) numerators[j] = Exp(all[chosen[j]] - max);
      if (!options.normalise) {
        sum = PairwiseSum<T>(0, e, [=](int64_t i) { return Exp(all[i] - max); });
      }
    } else {
      for (int64_t j = 0; j < k; ++j) numerators[j] = Sigmoid(all[chosen[j]]);
    }
    if (options.normalise) {
      sum = 0;
      for (int64_t j = 0; j < k; ++j) sum += numerators[j];
      sum = std::max(sum, static_cast<T>(kLeastGateSum));
    }
    factor = static_cast<T>(options.scale) / sum;
  }
};

void ExpertGatesForwardCpu(Stream, const ExpertGatesArgs& args) {
  const int64_t n = args.logits.dim(0), e = args.logits.dim(1), k = args.experts.dim(1);
  DispatchWide(args.logits.dtype(), [&]<class T>(TypeTag<T>) {
    const T* logits = args.logits.data<T>();
    const int32_t* experts = args.experts.data<int32_t>();
    T* gates = args.gates.data<T>();
    ParallelFor(n, GrainOf(4 * e), [=, &args](int64_t begin, int64_t end) {
      RowGates<T> of;
      for (int64_t row = begin; row < end; ++row) {
        of.Compute(args.options, logits + row * e, e, experts + row * k, k);
        for (int64_t j = 0; j < k; ++j) gates[row * k + j] = of.numerators[j] * of.factor;
      }
    });
  });
}

// Into `d`, all zeros, the gradient of a row's logits.
template <class T>
void GatesBackwardRow(const RouterOptions& options, const RowGates<T>& of, const T* all, int64_t e,
                      const int32_t* chosen, int64_t k, const T* dgates, T* d) {
  // With g_j = numerator_j * factor: sum_j dg_j g_j, which the denominator takes back.
  T dot = 0;
  for (int64_t j = 0; j < k; ++j) dot += dgates[j] * (of.numerators[j] * of.factor);
  const T share = dot / static_cast<T>(options.scale);
  if (options.score == RouterScore::kSoftmax && !options.normalise) {
    const T max = MaxOver<T>(e, [=](int64_t i) { return all[i]; });
    for (int64_t i = 0; i < e; ++i) {
      d[i] = -Exp(all[i] - max) * (of.factor / static_cast<T>(options.scale)) * dot;
    }
  }
  for (int64_t j = 0; j < k; ++j) {
    const T gate = of.numerators[j] * of.factor;
    T through = dgates[j] * gate;
    if (options.normalise) through -= gate * share;
    // The derivative of a sigmoid over itself is 1 - it, that of an exponential 1.
    if (options.score == RouterScore::kSigmoid) through *= T(1) - of.numerators[j];
    d[chosen[j]] += through;
  }
}

void ExpertGatesBackwardCpu(Stream, const ExpertGatesBackwardArgs& args) {
  const int64_t n = args.logits.dim(0), e = args.logits.dim(1), k = args.experts.dim(1);
  DispatchWide(args.logits.dtype(), [&]<class T>(TypeTag<T>) {
    const T *logits = args.logits.data<T>(), *dgates = args.dgates.data<T>();
    const int32_t* experts = args.experts.data<int32_t>();
    T* dlogits = args.dlogits.data<T>();
    ParallelFor(n, GrainOf(4 * e), [=, &args](int64_t begin, int64_t end) {
      RowGates<T> of;
      std::vector<T> d(static_cast<size_t>(e));
      for (int64_t row = begin; row < end; ++row) {
        const T* all = logits + row * e;
        const int32_t* chosen = experts + row * k;
        of.Compute(args.options, all, e, chosen, k);
        std::fill(d.begin(), d.end(), T(0));
        GatesBackwardRow(args.options, of, all, e, chosen, k, dgates + row * k, d.data());
        for (int64_t i = 0; i < e; ++i) {
          T& out = dlogits[row * e + i];
          out = args.accumulate ? out + d[i] : d[i];
        }
      }
    });
  });
}

LS_REGISTER(top_experts, DeviceType::kCpu, TopExpertsCpu);
LS_REGISTER(expert_gates_forward, DeviceType::kCpu, ExpertGatesForwardCpu);
LS_REGISTER(expert_gates_backward, DeviceType::kCpu, ExpertGatesBackwardCpu);

}  // namespace
}  // namespace lockstep::cpu
