#include "kernels/residual_norm/residual_norm.h"

#include "core/autograd/saved_tensor.h"
#include "kernels/binary/binary.h"
#include "kernels/cast/cast.h"
#include "kernels/dropout/dropout.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/rms_norm/rms_norm.h"

namespace lockstep::ops {
namespace {

class ResidualNormNode : public Node {
 public:
  explicit ResidualNormNode(const ResidualNormForwardArgs& args)
      : Node("residual_norm"),
        kind_(args.kind),
        sum_(args.sum, "the sum of residual_norm"),
        weight_(args.weight, "the weight of residual_norm"),
        mean_(args.mean, "the mean of residual_norm"),
        rstd_(args.rstd, "the scale of residual_norm"),
        key_(args.key, "the key of residual_norm's mask"),
        bias_(args.bias),
        branch_bias_(args.branch_bias),
        dropout_(args.dropout),
        per_sample_(args.per_sample),
        part_(args.part) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    ResidualNormBackwardArgs args;
    args.kind = kind_;
    args.sum = sum_.Unpack();
    args.weight = weight_.Unpack();
    if (mean_.defined()) args.mean = mean_.Unpack();
    args.rstd = rstd_.Unpack();
    args.dsum = grads[0].Contiguous();
    args.dy = grads[1].Contiguous();
    if (needs[0] || needs[1] || needs[4]) args.dx = args.dbranch = Tensor::EmptyLike(args.sum);
    if (key_.defined() && args.dx.defined()) {
      args.key = key_.Unpack();
      args.dropout = dropout_;
      args.per_sample = per_sample_;
      args.part = part_;
      args.dbranch = Tensor::EmptyLike(args.sum);
    }
    if (needs[2]) args.dweight = sinks[2].OpenAnyDType(args.weight);
    if (needs[3]) args.dbias = sinks[3].OpenAnyDType(bias_);
    if (needs[4]) args.dbranch_bias = sinks[4].OpenAnyDType(branch_bias_);
    residual_norm_backward(CurrentStream(args.sum.device()), args);
    if (needs[0]) sinks[0].Put(args.dx);
    if (needs[1]) sinks[1].Put(args.dbranch);
  }
  void Release() override {
    for (SavedTensor* saved : {&sum_, &weight_, &mean_, &rstd_, &key_}) saved->Reset();
  }

 private:
  NormKind kind_;
  SavedTensor sum_, weight_, mean_, rstd_, key_;
  Tensor bias_, branch_bias_;  // for their shapes and dtypes
  double dropout_;
  int64_t per_sample_;
  SamplePart part_;
};

void CheckAffine(const char* name, const Tensor& t, const Tensor& x) {
  const bool dtype_fits = t.defined() && (t.dtype() == x.dtype() || t.dtype() == DType::kF32);
  LS_CHECK(dtype_fits && t.shape() == Shape{x.dim(-1)} && t.device() == x.device(),
           "residual_norm: ", name, " must be ", x.dtype(), "[", x.dim(-1), "] on ", x.device(),
           " as x is ", x.Describe(), ", got ", t.Describe());
}

void Check(NormKind kind, const Tensor& x, const Branch& branch, const Tensor& weight,
           const Tensor& bias, double eps) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 1 && x.dim(-1) > 0,
           "residual_norm: x must be a floating [..., C] with C > 0, got ", x.Describe());
  const Tensor& value = branch.value;
  LS_CHECK(value.defined() && value.shape() == x.shape() && value.dtype() == x.dtype() &&
               value.device() == x.device(),
           "residual_norm: the branch must match x (", x.Describe(), "), got ", value.Describe());
  if (branch.bias.defined()) CheckAffine("the branch's bias", branch.bias, x);
  LS_CHECK(branch.dropout >= 0 && branch.dropout < 1,
           "residual_norm: the probability of the branch's dropout must be in [0, 1), got ",
           branch.dropout);
  const StepState* state = CurrentStepState();
  LS_CHECK(branch.dropout == 0 || state == nullptr || state->device() == x.device(),
           "residual_norm: x is on ", x.device(), ", the StepState of the TrainingScope on ",
           state == nullptr ? Device() : state->device());
  CheckAffine("weight", weight, x);
  LS_CHECK(kind == NormKind::kLayerNorm || !bias.defined(),
           "residual_norm: an RMS norm has no bias, got ", bias.Describe());
  if (bias.defined()) CheckAffine("bias", bias, x);
  LS_CHECK(eps >= 0, "residual_norm: eps must not be negative, got ", eps);
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
  args.weight = weight.Detach().Contiguous();
  if (bias.defined()) args.bias = bias.Detach().Contiguous();
  args.eps = eps;
  args.sum = Tensor::EmptyLike(args.x);
  args.y = Tensor::EmptyLike(args.x);
  if (kind == NormKind::kLayerNorm) args.mean = Tensor::Empty(rows, statistics, x.device());
  args.rstd = Tensor::Empty(rows, statistics, x.device());
  residual_norm_forward(CurrentStream(x.device()), args);
  std::pair<Tensor, Tensor> out{args.sum, args.y};
  if (NeedsGrad({&x, &branch.value, &weight, &bias, &branch.bias})) {
    Record(std::make_shared<ResidualNormNode>(args),
           {&x, &branch.value, &weight, &bias, &branch.bias}, {&out.first, &out.second});
  }
  if (kind == NormKind::kLayerNorm) {
    OfferLayerNorm(args.sum, args.weight, args.bias, eps, args.y);
  } else {
    OfferRmsNorm(args.sum, args.weight, eps, args.y);
  }
  return out;
}

}  // namespace lockstep::ops
