// The losses of a mixture's router: an even load, and small logits.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"
#include "kernels/expert_router/expert_router.h"

namespace lockstep {

struct RouterLossOptions {
  RouterScore score = RouterScore::kSoftmax;
  double balance = 0;  // coefficient of the balance loss
  double z = 0;        // coefficient of the z-loss
};

namespace ops {

// The balance loss and the z-loss of each token, times their coefficients, added up: a scalar, f64
// for f64 logits, else f32. It is a sum over tokens, as the cross entropy of a language model is,
// so that the same root gradient, 1 / (tokens of the global batch), makes both means. logits [B, T,
// E] of B sequences, f32 or f64; experts i32 [B T, k], the choice.
//
// Balance: for each sequence T sum_e f_e P_e, with f_e = E / (k T) times how many of its T k
// choices are expert e (no gradient) and P_e the mean over its tokens of expert e's share of the
// scores: 1 per token for an even load. It is taken per sequence (DeepSeek-AI, "DeepSeek-V3
// technical report" 2024, equations 17 to 20; per batch it is that of Fedus et al., "Switch
// transformers" 2021), since what a sequence adds then depends on nothing else: not on
// micro-batches, ranks or accumulation.
//
// z: the squares of log sum_e exp(logit_e), Zoph et al., "ST-MoE" (2022).
//
// Saves the logits, and f [B, E].
Tensor RouterLoss(const Tensor& logits, const Tensor& experts, const RouterLossOptions& options);

}  // namespace ops

struct RouterLossArgs {
  RouterLossOptions options;
  Tensor logits;   // [B, T, E]
  Tensor experts;  // i32 [B, T, k]
  Tensor weights;  // [B, E], written: balance * f, of the logits' dtype
  Tensor loss;     // [], written
};
inline constinit Slot<void(const RouterLossArgs&)> router_loss_forward{"router_loss_forward"};

struct RouterLossBackwardArgs {
  RouterLossOptions options;
  Tensor logits, weights;
  Tensor dloss;    // [], of the logits' dtype
  Tensor dlogits;  // [B, T, E], written
  bool accumulate = false;
};
inline constinit Slot<void(const RouterLossBackwardArgs&)> router_loss_backward{
    "router_loss_backward"};

}  // namespace lockstep
