#include "kernels/residual_norm/residual_norm.h"

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
        bias_(args.bias) {}

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
    if (needs[0] || needs[1]) args.dx = Tensor::EmptyLike(args.sum);
    if (needs[2]) args.dweight = sinks[2].OpenAnyDType(args.weight);
    if (needs[3]) args.dbias = sinks[3].OpenAnyDType(bias_);
    residual_norm_backward(CurrentStream(args.sum.device()), args);
    for (size_t i : {0, 1}) {
      if (needs[i]) sinks[i].Put(args.dx);
    }
  }
  void Release() override {
    for (SavedTensor* saved : {&sum_, &weight_, &mean_, &rstd_}) saved->Reset();
  }

 private:
  NormKind kind_;
  SavedTensor sum_, weight_, mean_, rstd_;
  Tensor bias_;  // for its shape and dtype
};

void CheckAffine(const char* name, const Tensor& t, const Tensor& x) {
  const bool dtype_fits = t.defined() && (t.dtype() == x.dtype() || t.dtype() == DType::kF32);
  LS_CHECK(dtype_fits && t.shape() == Shape{x.dim(-1)} && t.device() == x.device(),
           "residual_norm: ", name, " must be ", x.dtype(), "[", x.dim(-1), "] on ", x.device(),
           " as x is ", x.Describe(), ", got ", t.Describe());
}

}  // namespace

std::pair<Tensor, Tensor> ResidualNorm(NormKind kind, const Tensor& x, const Tensor& branch,
                                       const Tensor& weight, const Tensor& bias, double eps) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 1 && x.dim(-1) > 0,
           "residual_norm: x must be a floating [..., C] with C > 0, got ", x.Describe());
  LS_CHECK(branch.defined() && branch.shape() == x.shape() && branch.dtype() == x.dtype() &&
               branch.device() == x.device(),
           "residual_norm: the branch must be like x (", x.Describe(), "), got ",
           branch.Describe());
  CheckAffine("weight", weight, x);
  LS_CHECK(kind == NormKind::kLayerNorm || !bias.defined(),
           "residual_norm: an RMS norm has no bias, got ", bias.Describe());
  if (bias.defined()) CheckAffine("bias", bias, x);
  LS_CHECK(eps >= 0, "residual_norm: eps must not be negative, got ", eps);
  const Shape rows = {x.numel() / x.dim(-1)};
  const DType statistics = x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  ResidualNormForwardArgs args;
  args.kind = kind;
  args.x = x.Detach().Contiguous();
  args.branch = branch.Detach().Contiguous();
  args.weight = weight.Detach().Contiguous();
  if (bias.defined()) args.bias = bias.Detach().Contiguous();
  args.eps = eps;
  args.sum = Tensor::EmptyLike(args.x);
  args.y = Tensor::EmptyLike(args.x);
  if (kind == NormKind::kLayerNorm) args.mean = Tensor::Empty(rows, statistics, x.device());
  args.rstd = Tensor::Empty(rows, statistics, x.device());
  residual_norm_forward(CurrentStream(x.device()), args);
  std::pair<Tensor, Tensor> out{args.sum, args.y};
  if (NeedsGrad({&x, &branch, &weight, &bias})) {
    Record(std::make_shared<ResidualNormNode>(args), {&x, &branch, &weight, &bias},
           {&out.first, &out.second});
  }
  return out;
}

}  // namespace lockstep::ops
