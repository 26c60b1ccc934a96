#include "models/preference/dpo.h"

#include <numbers>

#include "core/error.h"
#include "kernels/binary/binary.h"
#include "kernels/scale/scale.h"
#include "kernels/unary/unary.h"

namespace lockstep::models {
namespace {

void Check(const Tensor& policy, const Tensor& reference, const DpoOptions& options,
           const Tensor& lengths) {
  LS_CHECK(policy.defined() && IsFloating(policy.dtype()) && policy.ndim() == 1 &&
               policy.dim(0) % 2 == 0,
           "dpo: the policy's log-probabilities must be floating and come in pairs, [2 P], got ",
           policy.Describe());
  const auto like_policy = [&](const Tensor& x) {
    return x.defined() && x.dtype() == policy.dtype() && x.shape() == policy.shape();
  };
  LS_CHECK(like_policy(reference), "dpo: the reference's log-probabilities must be like the ",
           "policy's, ", policy.Describe(), ", got ", reference.Describe());
  LS_CHECK(options.beta > 0, "dpo: beta must be above 0, got ", options.beta);
  LS_CHECK(options.label_smoothing >= 0 && options.label_smoothing < 0.5,
           "dpo: label_smoothing must be in [0, 0.5), got ", options.label_smoothing);
  if (options.loss != DpoLossKind::kIpo) return;
  LS_CHECK(options.label_smoothing == 0, "dpo: the ipo loss has no label_smoothing, got ",
           options.label_smoothing);
  LS_CHECK(like_policy(lengths), "dpo: the ipo loss needs the lengths of the answers, like ",
           policy.Describe(), ", got ", lengths.Describe());
}

// The rows that are chosen (0) or rejected (1), of [2 P].
Tensor Side(const Tensor& rows, int which) {
  return rows.View({-1, 2}).Slice(1, which, which + 1).Reshape({-1});
}

}  // namespace

double IndifferentLoss(const DpoOptions& options) {
  const double distance = 1 / (2 * options.beta);
  return options.loss == DpoLossKind::kIpo ? distance * distance : std::numbers::ln2;
}

PreferenceLoss DpoLoss(const Tensor& policy, const Tensor& reference, const DpoOptions& options,
                       const Tensor& lengths) {
  Check(policy, reference, options, lengths);
  const Tensor ratios = policy - reference.Detach();
  PreferenceLoss result{.chosen = Side(ratios.Detach(), 0) * options.beta,
                        .rejected = Side(ratios.Detach(), 1) * options.beta};
  if (options.loss == DpoLossKind::kIpo) {
    const Tensor means = ratios / lengths;
    result.losses = ops::Square(Side(means, 0) - Side(means, 1) - 1 / (2 * options.beta));
    return result;
  }
  // -log sigmoid(x) = softplus(-x).
  const Tensor margin = (Side(ratios, 0) - Side(ratios, 1)) * options.beta;
  result.losses = ops::Softplus(-margin);
  if (options.label_smoothing > 0) {
    result.losses = result.losses * (1 - options.label_smoothing) +
                    ops::Softplus(margin) * options.label_smoothing;
  }
  return result;
}

}  // namespace lockstep::models
