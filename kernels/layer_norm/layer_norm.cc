#include "kernels/layer_norm/layer_norm.h"

#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

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
  OfferRecompute("layer_norm", y,
                 {{x, "the input of layer_norm"},
                  {weight, "the weight of layer_norm"},
                  {bias, "the bias of layer_norm"}},
                 [eps](std::span<const Tensor> in) { return Compute(in[0], in[1], in[2], eps).y; });
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
  RecordOp("layer_norm", {&x, &weight, &bias}, {&r.y},
           {{input, "the input of layer_norm"},
            {w, "the weight of layer_norm"},
            {r.mean, "the mean of layer_norm"},
            {r.rstd, "the scale of layer_norm"}},
           [](const SavedTensors& saved, Gradients& grads) {
             const Tensor x = saved[0], weight = saved[1], mean = saved[2], rstd = saved[3];
             const GradTarget dx = grads.Open(0), dweight = grads.OpenAnyDType(1),
                              dbias = grads.OpenAnyDType(2);
             layer_norm_backward(CurrentStream(x.device()), x, weight, mean, rstd, grads[0], dx,
                                 dweight, dbias);
           });
  OfferLayerNorm(input, w, b, eps, r.y);
  return r.y;
}

}  // namespace lockstep::ops
