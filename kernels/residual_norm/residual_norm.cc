#include "kernels/residual_norm/residual_norm.h"

#include "kernels/binary/binary.h"
#include "kernels/cast/cast.h"
#include "kernels/checks.h"
#include "kernels/dropout/dropout.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"

namespace lockstep::ops {
namespace {

void Backward(NormKind kind, double dropout, int64_t per_sample, SamplePart part,
              const SavedTensors& saved, Gradients& grads) {
  ResidualNormBackwardArgs args{
      .kind = kind, .dropout = dropout, .per_sample = per_sample, .part = part};
  args.sum = saved[0];
  args.weight = saved[1];
  args.mean = saved[2];
  args.rstd = saved[3];
  args.dsum = grads[0];
  args.dy = grads[1];
  if (grads.needs(0) || grads.needs(1) || grads.needs(4)) {
    args.dx = args.dbranch = Tensor::EmptyLike(args.sum);
    args.key = saved[4];
    if (args.key.defined()) args.dbranch = Tensor::EmptyLike(args.sum);
  }
  args.dweight = grads.OpenAnyDType(2);
  args.dbias = grads.OpenAnyDType(3);
  args.dbranch_bias = grads.OpenAnyDType(4);
  residual_norm_backward(CurrentStream(args.sum.device()), args);
  if (grads.needs(0)) grads.Put(0, std::exchange(args.dx, {}));
  if (grads.needs(1)) grads.Put(1, std::exchange(args.dbranch, {}));
}

void CheckParameter(const char* name, const Tensor& t, const Tensor& x) {
  CheckNormParameter("residual_norm", name, t, x, x.dim(-1));
}

void Check(NormKind kind, const Tensor& x, const Branch& branch, const Tensor& weight,
           const Tensor& bias, double eps) {
  CheckNormInput("residual_norm", x, eps);
  const Tensor& value = branch.value;
  LS_CHECK(value.defined() && value.shape() == x.shape() && value.dtype() == x.dtype() &&
               value.device() == x.device(),
           "residual_norm: the branch must match x (", x.Describe(), "), got ", value.Describe());
  if (branch.bias.defined()) CheckParameter("the branch's bias", branch.bias, x);
  LS_CHECK(branch.dropout >= 0 && branch.dropout < 1,
           "residual_norm: the probability of the branch's dropout must be in [0, 1), got ",
           branch.dropout);
  const StepState* state = CurrentStepState();
  LS_CHECK(branch.dropout == 0 || state == nullptr || state->device() == x.device(),
           "residual_norm: x is on ", x.device(), ", the StepState of the TrainingScope on ",
           state == nullptr ? Device() : state->device());
  const bool has_weight = kind == NormKind::kLayerNorm || weight.defined();
  if (has_weight) CheckParameter("weight", weight, x);
  LS_CHECK(kind == NormKind::kLayerNorm || !bias.defined(),
           "residual_norm: an RMS norm has no bias, got ", bias.Describe());
  if (bias.defined()) CheckParameter("bias", bias, x);
}

}  // namespace

Tensor Complete(const Branch& branch) {
  const Tensor& value = branch.value;
  return Dropout(branch.bias.defined() ? Add(value, Cast(branch.bias, value.dtype())) : value,
                 branch.dropout, branch.site);
}

std::pair<Tensor, Tensor> ResidualNorm(NormKind kind, const Tensor& x, const Branch& branch,
                                       const Tensor& weight, const Tensor& bias, double eps,
                                       SamplePart part) {
  Check(kind, x, branch, weight, bias, eps);
  const Shape rows = {x.numel() / x.dim(-1)};
  const DType statistics = AccumulationDType(x.dtype());
  ResidualNormForwardArgs args;
  args.kind = kind;
  args.x = x.Detach().Contiguous();
  args.branch = branch.value.Detach().Contiguous();
  if (branch.bias.defined()) args.branch_bias = branch.bias.Detach().Contiguous();
  if (const StepState* state = branch.dropout == 0 ? nullptr : RandomState(); state != nullptr) {
    args.values = state->device_values();
    args.dropout = branch.dropout;
    args.site = branch.site;
    args.per_sample = x.numel() == 0 || x.ndim() == 1 ? x.numel() : x.numel() / x.dim(0);
    args.part = part;
    args.key = Tensor::Empty({kDropoutKeySize}, DType::kI64, x.device());
  }
  if (weight.defined()) args.weight = weight.Detach().Contiguous();
  if (bias.defined()) args.bias = bias.Detach().Contiguous();
  args.eps = eps;
  args.sum = Tensor::EmptyLike(args.x);
  args.y = Tensor::EmptyLike(args.x);
  if (kind == NormKind::kLayerNorm) args.mean = Tensor::Empty(rows, statistics, x.device());
  args.rstd = Tensor::Empty(rows, statistics, x.device());
  residual_norm_forward(CurrentStream(x.device()), args);
  std::pair<Tensor, Tensor> out{args.sum, args.y};
  RecordOp("residual_norm", {&x, &branch.value, &weight, &bias, &branch.bias},
           {&out.first, &out.second},
           {{args.sum, "the sum of residual_norm"},
            {args.weight, "the weight of residual_norm"},
            {args.mean, "the mean of residual_norm"},
            {args.rstd, "the scale of residual_norm"},
            {args.key, "the key of residual_norm's mask"}},
           [kind, dropout = args.dropout, per_sample = args.per_sample, part = args.part](
               const SavedTensors& saved, Gradients& grads) {
             Backward(kind, dropout, per_sample, part, saved, grads);
           });
  if (kind == NormKind::kLayerNorm) {
    OfferLayerNorm(args.sum, args.weight, args.bias, eps, args.y);
  } else {
    OfferRmsNorm(args.sum, args.weight, eps, args.y);
  }
  if (branch.dropout > 0 && !args.key.defined()) {
    return {Evaluated(out.first), Evaluated(out.second)};
  }
  return out;
}

}  // namespace lockstep::ops
