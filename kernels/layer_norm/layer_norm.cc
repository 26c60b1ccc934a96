#include "kernels/layer_norm/layer_norm.h"

#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

class LayerNormNode : public Node {
 public:
  LayerNormNode(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                const Tensor& rstd)
      : Node("layer_norm"),
        x_(x, "the input of layer_norm"),
        weight_(weight, "the weight of layer_norm"),
        mean_(mean, "the mean of layer_norm"),
        rstd_(rstd, "the scale of layer_norm"),
        bias_(bias.Detach()) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor x = x_.Unpack(), weight = weight_.Unpack();
    GradSink::Target dx, dweight, dbias;
    if (needs[0]) dx = sinks[0].Open(x);
    if (needs[1]) dweight = sinks[1].OpenAnyDType(weight);
    if (needs[2]) dbias = sinks[2].OpenAnyDType(bias_);
    layer_norm_backward(CurrentStream(x.device()), x, weight, mean_.Unpack(), rstd_.Unpack(),
                        grads[0], dx, dweight, dbias);
  }
  void Release() override {
    for (SavedTensor* saved : {&x_, &weight_, &mean_, &rstd_}) saved->Reset();
  }

 private:
  SavedTensor x_, weight_, mean_, rstd_;
  Tensor bias_;  // for its shape and dtype
};

void CheckAffine(const char* name, const Tensor& t, const Tensor& x) {
  const bool dtype_fits = t.defined() && (t.dtype() == x.dtype() || t.dtype() == DType::kF32);
  LS_CHECK(dtype_fits && t.shape() == Shape{x.dim(-1)} && t.device() == x.device(),
           "layer_norm: ", name, " must be ", x.dtype(), "[", x.dim(-1), "] on ", x.device(),
           " as x is ", x.Describe(), ", got ", t.Describe());
}

struct Result {
  Tensor y, mean, rstd;
};

// All contiguous.
Result Compute(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const Shape rows = {x.numel() / x.dim(-1)};
  const DType statistics = AccumulationDType(x.dtype());
  Result r{Tensor::EmptyLike(x), Tensor::Empty(rows, statistics, x.device()),
           Tensor::Empty(rows, statistics, x.device())};
  layer_norm_forward(CurrentStream(x.device()), x, weight, bias, eps, r.y, r.mean, r.rstd);
  return r;
}

}  // namespace

void OfferLayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                    const Tensor& y) {
  if (!MayRedo("layer_norm")) return;
  OfferRedo(y, [x = SavedTensor(x, "the input of layer_norm"),
                weight = SavedTensor(weight, "the weight of layer_norm"),
                bias = SavedTensor(bias, "the bias of layer_norm"),
                eps] { return Compute(x.Unpack(), weight.Unpack(), bias.Unpack(), eps).y; });
}

Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 1 && x.dim(-1) > 0,
           "layer_norm: x must be a floating [..., C] with C > 0, got ", x.Describe());
  CheckAffine("weight", weight, x);
  if (bias.defined()) CheckAffine("bias", bias, x);
  LS_CHECK(eps >= 0, "layer_norm: eps must not be negative, got ", eps);
  const Tensor input = x.Detach().Contiguous();
  const Tensor w = weight.Detach().Contiguous();
  const Tensor b = bias.defined() ? bias.Detach().Contiguous() : Tensor();
  Result r = Compute(input, w, b, eps);
  if (NeedsGrad({&x, &weight, &bias})) {
    Record(std::make_shared<LayerNormNode>(input, w, b, r.mean, r.rstd), {&x, &weight, &bias},
           {&r.y});
  }
  OfferLayerNorm(input, w, b, eps, r.y);
  return r.y;
}

}  // namespace lockstep::ops
