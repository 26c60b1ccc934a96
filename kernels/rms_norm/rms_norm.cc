#include "kernels/rms_norm/rms_norm.h"

#include "core/autograd/recomputable_ops.h"
#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

const bool registered = RegisterRecomputable("rms_norm");

struct Result {
  Tensor y, rstd;
};

// Contiguous; the weight may be undefined.
Result Compute(const Tensor& x, const Tensor& weight, double eps) {
  const DType statistics = AccumulationDType(x.dtype());
  Result r{Tensor::EmptyLike(x), Tensor::Empty({x.numel() / x.dim(-1)}, statistics, x.device())};
  rms_norm_forward(CurrentStream(x.device()), x, weight, eps, r.y, r.rstd);
  return r;
}

}  // namespace

void OfferRmsNorm(const Tensor& x, const Tensor& weight, double eps, const Tensor& y) {
  OfferRecompute("rms_norm", y, {{x, "the input of rms_norm"}, {weight, "the weight of rms_norm"}},
                 [eps](std::span<const Tensor> in) { return Compute(in[0], in[1], eps).y; });
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps) {
  CheckNormInput("rms_norm", x, eps);
  if (weight.defined()) CheckNormParameter("rms_norm", "weight", weight, x, x.dim(-1));
  const Tensor input = x.Detach().Contiguous();
  const Tensor w = weight.defined() ? weight.Detach().Contiguous() : weight;
  Result r = Compute(input, w, eps);
  RecordOp("rms_norm", {&x, &weight}, {&r.y},
           {{input, "the input of rms_norm"},
            {w, "the weight of rms_norm"},
            {r.rstd, "the scale of rms_norm"}},
           [](const SavedTensors& saved, Gradients& grads) {
             const Tensor x = saved[0], weight = saved[1], rstd = saved[2];
             const GradTarget dx = grads.Open(0), dweight = grads.OpenAnyDType(1);
             rms_norm_backward(CurrentStream(x.device()), x, weight, rstd, grads[0], dx, dweight);
           });
  OfferRmsNorm(input, w, eps, r.y);
  return r.y;
}

}  // namespace lockstep::ops
