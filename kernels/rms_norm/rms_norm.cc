#include "kernels/rms_norm/rms_norm.h"

#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

class RmsNormNode : public Node {
 public:
  RmsNormNode(const Tensor& x, const Tensor& weight, const Tensor& rstd)
      : Node("rms_norm"),
        x_(x, "the input of rms_norm"),
        weight_(weight, "the weight of rms_norm"),
        rstd_(rstd, "the scale of rms_norm") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor x = x_.Unpack(), weight = weight_.Unpack();
    GradSink::Target dx, dweight;
    if (needs[0]) dx = sinks[0].Open(x);
    if (needs[1]) dweight = sinks[1].OpenAnyDType(weight);
    rms_norm_backward(CurrentStream(x.device()), x, weight, rstd_.Unpack(), grads[0], dx, dweight);
  }
  void Release() override {
    for (SavedTensor* saved : {&x_, &weight_, &rstd_}) saved->Reset();
  }

 private:
  SavedTensor x_, weight_, rstd_;
};

struct Result {
  Tensor y, rstd;
};

// Both contiguous.
Result Compute(const Tensor& x, const Tensor& weight, double eps) {
  const DType statistics = AccumulationDType(x.dtype());
  Result r{Tensor::EmptyLike(x), Tensor::Empty({x.numel() / x.dim(-1)}, statistics, x.device())};
  rms_norm_forward(CurrentStream(x.device()), x, weight, eps, r.y, r.rstd);
  return r;
}

}  // namespace

void OfferRmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& y) {
  if (!MayRedo("rms_norm")) return;
  OfferRedo(y, [x = SavedTensor(x, "the input of rms_norm"),
                weight = SavedTensor(weight, "the weight of rms_norm"),
                eps] { return Compute(x.Unpack(), weight.Unpack(), eps).y; });
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 1 && x.dim(-1) > 0,
           "rms_norm: x must be a floating [..., C] with C > 0, got ", x.Describe());
  const bool dtype_fits =
      weight.defined() && (weight.dtype() == x.dtype() || weight.dtype() == DType::kF32);
  LS_CHECK(dtype_fits && weight.shape() == Shape{x.dim(-1)} && weight.device() == x.device(),
           "rms_norm: weight must be ", x.dtype(), "[", x.dim(-1), "] on ", x.device(), " as x is ",
           x.Describe(), ", got ", weight.Describe());
  LS_CHECK(eps >= 0, "rms_norm: eps must not be negative, got ", eps);
  const Tensor input = x.Detach().Contiguous();
  const Tensor w = weight.Detach().Contiguous();
  Result r = Compute(input, w, eps);
  if (NeedsGrad({&x, &weight})) {
    Record(std::make_shared<RmsNormNode>(input, w, r.rstd), {&x, &weight}, {&r.y});
  }
  OfferRmsNorm(input, w, eps, r.y);
  return r.y;
}

}  // namespace lockstep::ops
