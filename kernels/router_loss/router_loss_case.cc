#include <cmath>

#include "kernels/op_case/op_case.h"
#include "kernels/router_loss/router_loss.h"

namespace lockstep {
namespace {

std::vector<RefTensor> Reference(RefSpan in, const RouterLossOptions& options) {
  const int64_t b = in[0].shape[0], t = in[0].shape[1], e = in[0].shape[2], k = in[1].shape[1];
  RefTensor loss(Shape{});
  for (int64_t s = 0; s < b; ++s) {
    std::vector<double> count(static_cast<size_t>(e)), mean(static_cast<size_t>(e));
    for (int64_t i = 0; i < t * k; ++i) ++count[static_cast<size_t>(in[1].data[s * t * k + i])];
    for (int64_t token = 0; token < t; ++token) {
      const double* row = in[0].data.data() + (s * t + token) * e;
      double exps = 0, scores = 0;
      std::vector<double> score(static_cast<size_t>(e));
      for (int64_t i = 0; i < e; ++i) {
        exps += std::exp(row[i]);
        score[i] =
            options.score == RouterScore::kSoftmax ? std::exp(row[i]) : 1 / (1 + std::exp(-row[i]));
        scores += score[i];
      }
      for (int64_t i = 0; i < e; ++i) mean[i] += score[i] / scores / static_cast<double>(t);
      loss.data[0] += options.z * std::log(exps) * std::log(exps);
    }
    for (int64_t i = 0; i < e && t > 0; ++i) {
      const double f = static_cast<double>(e) / static_cast<double>(k * t) * count[i];
      loss.data[0] += static_cast<double>(t) * options.balance * f * mean[i];
    }
  }
  return {loss};
}

OpSample Sample(const std::string& name, const Shape& logits, int64_t k,
                const RouterLossOptions& options, double range = 2) {
  OpSample s;
  s.name = name;
  const int64_t e = logits[2];
  s.inputs = {{.shape = logits, .low = -range, .high = range},
              {.shape = {logits[0] * logits[1], k},
               .low = 0,
               .high = static_cast<double>(e),
               .index = true}};
  s.run = [options](TensorSpan in) { return ops::RouterLoss(in[0], in[1], options); };
  s.reference = [options](RefSpan in) { return Reference(in, options); };
  return s;
}

std::vector<OpSample> Samples() {
  const RouterLossOptions balance{.balance = 0.5}, z{.z = 0.3}, both{.balance = 1.5, .z = 0.1};
  const RouterLossOptions sigmoid{.score = RouterScore::kSigmoid, .balance = 0.7, .z = 0.2};
  OpSample transposed = Sample("transposed", {3, 5, 6}, 2, both);
  transposed.inputs[0].non_contiguous = true;
  OpSample large = Sample("qwen3_30b", {4, 4096, 128}, 8, both);
  large.benchmark = {.elements = 4.0 * 4096 * (2 * 128 + 8),
                     .backward_elements = 4.0 * 4096 * 2 * 128};
  return {
      Sample("empty", {0, 4, 3}, 2, both),
      Sample("no_tokens", {2, 0, 3}, 2, both),
      Sample("one", {1, 1, 1}, 1, both),
      Sample("balance", {3, 7, 5}, 2, balance),
      Sample("z", {2, 9, 4}, 1, z),
      Sample("both", {4, 11, 8}, 3, both),
      Sample("sigmoid", {2, 5, 40}, 4, sigmoid),
      Sample("peaked", {2, 5, 6}, 2, both, 20),
      Sample("many_tokens", {20, 150, 8}, 2, both),
      transposed,
      large,
  };
}

std::vector<ErrorSample> Errors() {
  return {{"no_sequences",
           [](Device d) { ops::RouterLoss(Zeros(d, 2, 4), Zeros(DType::kI32, d, 2, 1), {}); },
           "router_loss: the logits must be f32 or f64 [B, T, E], got f32[2, 4]"},
          {"wrong_experts",
           [](Device d) { ops::RouterLoss(Zeros(d, 2, 3, 4), Zeros(DType::kI32, d, 5, 1), {}); },
           "router_loss: the experts must be i32[6, k]"},
          {"negative",
           [](Device d) {
             ops::RouterLoss(Zeros(d, 2, 3, 4), Zeros(DType::kI32, d, 6, 1), {.balance = -1});
           },
           "router_loss: the coefficients must not be negative, got -1 and 0"}};
}

const bool registered = RegisterOpCase({.name = "router_loss",
                                        .dtypes = {DType::kF64, DType::kF32},
                                        .samples = Samples,
                                        .errors = Errors});

}  // namespace
}  // namespace lockstep
