// Direct preference optimisation: Rafailov et al., "Direct preference optimization: your language
// model is secretly a reward model" (2023).
#pragma once

#include "core/tensor.h"

namespace lockstep::models {

enum class DpoLossKind {
  kSigmoid,  // -log sigmoid(margin)
  // Azar et al., "A general theoretical paradigm to understand learning from human preferences"
  // (2023): (difference - 1 / (2 beta))^2, where the difference is that of the mean log-ratios of
  // the answers' tokens: a margin to reach, and not to exceed.
  kIpo,
};

struct DpoOptions {
  DpoLossKind loss = DpoLossKind::kSigmoid;
  double beta = 0.1;  // > 0: how much it costs to leave the reference
  // The probability that a preference is the wrong way round, in [0, 0.5), for kSigmoid only:
  // Mitchell, "A note on DPO with noisy preferences" (2023).
  double label_smoothing = 0;
};

// The loss of P pairs of answers.
struct PreferenceLoss {
  Tensor losses;            // [P]
  Tensor chosen, rejected;  // [P]: the answers' rewards, beta (policy - reference); no gradient
};

// The loss of a pair whose answers the reference and the policy tell apart equally, as the
// reference itself does.
double IndifferentLoss(const DpoOptions& options);

// policy and reference [2 P]: the log-probabilities that the model and its reference give to whole
// answers, that is, sums over their tokens. Rows come in pairs, the chosen answer first. Floating,
// of one dtype; the reference gets no gradient. For kIpo, lengths [2 P] has the same dtype: the
// number of each answer's tokens, at least 1. With the margin chosen - rejected of the rewards and
// smoothing e, the loss of a pair is
//   -(1 - e) log sigmoid(margin) - e log sigmoid(-margin).
// Margins of any size give finite losses and gradients. Throws ArgumentError for other shapes and
// for options that are out of range.
PreferenceLoss DpoLoss(const Tensor& policy, const Tensor& reference, const DpoOptions& options,
                       const Tensor& lengths = {});

}  // namespace lockstep::models
