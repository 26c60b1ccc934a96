#include "kernels/layer_norm/layer_norm.h"

#include "core/autograd/recomputable_ops.h"
#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

const bool registered = RegisterRecomputable("layer_norm");

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
  CheckNormInput("layer_norm", x, eps);
  CheckNormParameter("layer_norm", "weight", weight, x, x.dim(-1));
  if (bias.defined()) CheckNormParameter("layer_norm", "bias", bias, x, x.dim(-1));
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
