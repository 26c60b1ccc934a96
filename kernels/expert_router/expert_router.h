// The router of a mixture of experts: which experts a token goes to, and with what weights.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

enum class RouterScore {
  kSoftmax,  // over all experts: Shazeer et al., "Outrageously large neural networks" (2017)
  kSigmoid,  // of each expert: DeepSeek-AI, "DeepSeek-V3 technical report" (2024), section 2.1.2
};

// How the scores of the chosen experts become gates.
struct RouterOptions {
  RouterScore score = RouterScore::kSoftmax;
  // Divide the gates of a token by their sum. With kSoftmax this is the softmax over the logits of
  // only the chosen experts, as in Mixtral; without, the gates are shares of all experts.
  bool normalise = true;
  double scale = 1;  // multiplies the gates (DeepSeek-V3's routed_scaling_factor)
  bool operator==(const RouterOptions&) const = default;
};

// The least sum by which gates are divided: the sigmoids of very small logits are all 0.
inline constexpr double kLeastGateSum = 1e-20;

namespace ops {

// The k experts of each token with the largest scores, best first; of equal scores the lower index
// wins. logits [N, E], f32 (or f64); bias: undefined, or f32 [E] with kSigmoid, added to the scores
// for the choice only, so that it evens out the load (Wang et al., "Auxiliary-loss-free load
// balancing", 2024). Returns i32 [N, k]. No gradient.
Tensor TopExperts(const Tensor& logits, const Tensor& bias, int64_t k,
                  RouterScore score = RouterScore::kSoftmax);

// The gates [N, k] of the chosen experts, i32 [N, k], distinct in each row: their scores, as
// `options` say, in the dtype of the logits. Saves logits and experts. The gradient of a logit
// comes only through the gates of the token's chosen experts: none passes through the choice.
Tensor ExpertGates(const Tensor& logits, const Tensor& experts, const RouterOptions& options);

}  // namespace ops

struct TopExpertsArgs {
  RouterScore score = RouterScore::kSoftmax;
  Tensor logits;   // [N, E]
  Tensor bias;     // f32 [E] or undefined
  Tensor experts;  // i32 [N, k], written
};
inline constinit Slot<void(const TopExpertsArgs&)> top_experts{"top_experts"};

struct ExpertGatesArgs {
  RouterOptions options;
  Tensor logits;   // [N, E]
  Tensor experts;  // i32 [N, k]
  Tensor gates;    // [N, k], written
};
inline constinit Slot<void(const ExpertGatesArgs&)> expert_gates_forward{"expert_gates_forward"};

struct ExpertGatesBackwardArgs {
  RouterOptions options;
  Tensor logits, experts;
  Tensor dgates;   // [N, k]
  Tensor dlogits;  // [N, E], written
  bool accumulate = false;
};
inline constinit Slot<void(const ExpertGatesBackwardArgs&)> expert_gates_backward{
    "expert_gates_backward"};

}  // namespace lockstep
