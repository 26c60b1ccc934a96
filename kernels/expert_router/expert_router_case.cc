#include <algorithm>
#include <cmath>

#include "kernels/expert_router/expert_router.h"
#include "kernels/op_case/op_case.h"

namespace lockstep {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// {gates, experts} of logits [N, E], and of a bias [E] if there is one.
std::vector<RefTensor> Reference(RefSpan in, int64_t k, const RouterOptions& options) {
  const int64_t n = in[0].shape[0], e = in[0].shape[1];
  const bool sigmoid = options.score == RouterScore::kSigmoid;
  RefTensor gates({n, k}), experts({n, k});
  for (int64_t row = 0; row < n; ++row) {
    const double* logits = in[0].data.data() + row * e;
    double all = 0;
    for (int64_t i = 0; i < e; ++i) all += std::exp(logits[i]);
    std::vector<double> score(static_cast<size_t>(e));
    std::vector<bool> taken(static_cast<size_t>(e));
    for (int64_t i = 0; i < e; ++i) {
      score[i] = sigmoid ? Sigmoid(logits[i]) : std::exp(logits[i]) / all;
    }
    double sum = 0;
    for (int64_t slot = 0; slot < k; ++slot) {
      int64_t best = -1;
      double most = 0;
      for (int64_t i = 0; i < e; ++i) {
        const double with_bias = score[i] + (in.size() > 1 ? in[1].data[i] : 0);
        if (taken[i] || (best >= 0 && with_bias <= most)) continue;
        best = i;
        most = with_bias;
      }
      taken[best] = true;
      experts.data[row * k + slot] = static_cast<double>(best);
      gates.data[row * k + slot] = score[best];
      sum += score[best];
    }
    for (int64_t slot = 0; slot < k; ++slot) {
      gates.data[row * k + slot] *=
          options.scale / (options.normalise ? std::max(sum, kLeastGateSum) : 1);
    }
  }
  return {gates, experts};
}

struct Extra {
  double low = -2, high = 2;
  bool bias = false, non_contiguous = false, finite_differences = true;
};

OpSample Sample(const std::string& name, int64_t n, int64_t e, int64_t k,
                const RouterOptions& options = {}, const Extra& extra = {}) {
  OpSample s;
  s.name = name;
  s.inputs = {{.shape = {n, e},
               .low = extra.low,
               .high = extra.high,
               .non_contiguous = extra.non_contiguous}};
  if (extra.bias) {
    s.inputs.push_back({.shape = {e}, .differentiable = false, .dtype = DType::kF32});
  }
  s.run = [k, options](TensorSpan in) {
    const Tensor bias = in.size() > 1 ? in[1] : Tensor();
    const Tensor experts = ops::TopExperts(in[0], bias, k, options.score);
    return std::vector{ops::ExpertGates(in[0], experts, options), experts};
  };
  s.reference = [k, options](RefSpan in) { return Reference(in, k, options); };
  s.finite_differences = extra.finite_differences;
  return s;
}

std::vector<OpSample> Samples() {
  const RouterOptions shares{.normalise = false}, doubled{.scale = 2.5};
  const RouterOptions sigmoid{.score = RouterScore::kSigmoid};
  const RouterOptions plain_sigmoid{.score = RouterScore::kSigmoid, .normalise = false, .scale = 3};
  OpSample large = Sample("qwen3_30b", 8192, 128, 8);
  large.benchmark = {.elements = 8192.0 * (2 * 128 + 3 * 8),
                     .backward_elements = 8192.0 * (2 * 128 + 2 * 8)};
  return {
      Sample("empty", 0, 4, 2),
      Sample("one", 1, 1, 1),
      Sample("mixtral", 13, 8, 2),
      Sample("qwen", 5, 33, 8),
      Sample("all_experts", 7, 5, 5),
      Sample("top_one", 9, 8, 1, shares),
      Sample("shares", 11, 16, 3, shares),
      Sample("scaled", 6, 8, 3, doubled),
      Sample("sigmoid", 6, 8, 3, sigmoid),
      Sample("sigmoid_of_all", 6, 9, 2, plain_sigmoid),
      Sample("bias", 17, 12, 4, sigmoid, {.bias = true}),
      Sample("multiple_of_256_bytes", 8, 8, 2),  // so that a guard page follows the last logit
      Sample("peaked", 9, 8, 2, {}, {.low = -30, .high = 30}),
      Sample("peaked_shares", 9, 8, 2, shares, {.low = -30, .high = 30}),
      // All logits are equal: the first experts win.
      Sample("ties", 5, 70, 3, {}, {.low = 0, .high = 0, .finite_differences = false}),
      Sample("ties_of_sigmoids", 5, 40, 3, sigmoid,
             {.low = 0, .high = 0, .finite_differences = false}),
      // Whose scores, and so gates, are all 0.
      Sample("vanishing_sigmoids", 5, 6, 2, sigmoid,
             {.low = -150, .high = -150, .finite_differences = false}),
      Sample("non_contiguous", 10, 6, 2, {}, {.non_contiguous = true}),
      // Among this many some are near a tie, which differences would cross.
      Sample("many_tokens", 3000, 10, 2, {}, {.finite_differences = false}),
      large,
  };
}

std::vector<ErrorSample> Errors() {
  return {{"bf16_logits", [](Device d) { ops::TopExperts(Zeros(DType::kBF16, d, 2, 4), {}, 2); },
           "top_experts: the logits must be f32 or f64 [N, E], got bf16[2, 4]"},
          {"too_many", [](Device d) { ops::TopExperts(Zeros(d, 2, 4), {}, 5); },
           "top_experts: a token cannot go to 5 of 4 experts"},
          {"bias_of_softmax", [](Device d) { ops::TopExperts(Zeros(d, 2, 4), Zeros(d, 4), 2); },
           "top_experts: a bias is for sigmoid scores"},
          {"wrong_bias",
           [](Device d) { ops::TopExperts(Zeros(d, 2, 4), Zeros(d, 3), 2, RouterScore::kSigmoid); },
           "top_experts: the bias must be f32[4]"},
          {"wrong_experts",
           [](Device d) { ops::ExpertGates(Zeros(d, 2, 4), Zeros(DType::kI32, d, 3, 2), {}); },
           "expert_gates: the experts must be i32[2, k]"},
          {"no_scale",
           [](Device d) {
             ops::ExpertGates(Zeros(d, 2, 4), Zeros(DType::kI32, d, 2, 2), {.scale = 0});
           },
           "expert_gates: the scale must be positive, got 0"}};
}

const bool registered = RegisterOpCase({.name = "expert_router",
                                        .dtypes = {DType::kF64, DType::kF32},
                                        .samples = Samples,
                                        .errors = Errors});

}  // namespace
}  // namespace lockstep
