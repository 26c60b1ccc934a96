#include "kernels/swiglu_geglu/swiglu_geglu.h"

#include "core/autograd/node.h"
#include "core/autograd/recomputable_ops.h"
#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

const char* NameOf(GateForm form) { return form == GateForm::kSilu ? "swiglu" : "geglu_tanh"; }

const bool registered = RegisterRecomputable(NameOf(GateForm::kSilu)) &&
                        RegisterRecomputable(NameOf(GateForm::kGeluTanh));

// gate_up: contiguous.
Tensor Compute(GateForm form, const Tensor& gate_up) {
  Shape shape = gate_up.shape();
  shape[-1] /= 2;
  Tensor y = Tensor::Empty(shape, gate_up.dtype(), gate_up.device());
  swiglu_forward(CurrentStream(gate_up.device()), form, gate_up, y);
  return y;
}

Tensor Gated(GateForm form, const Tensor& gate_up) {
  LS_CHECK(gate_up.defined() && IsFloating(gate_up.dtype()) && gate_up.ndim() >= 1 &&
               gate_up.dim(-1) > 0 && gate_up.dim(-1) % 2 == 0,
           NameOf(form), ": the input must be a floating [..., 2F], gate and up side by side, got ",
           gate_up.Describe());
  const Tensor input = gate_up.Detach().Contiguous();
  Tensor y = Compute(form, input);
  RecordOp(NameOf(form), {&gate_up}, {&y}, {{input, "the input of a gated unit"}},
           [form](const SavedTensors& saved, Gradients& grads) {
             const Tensor gate_up = saved[0];
             const auto [dx, accumulate] = grads.Open(0);
             swiglu_backward(CurrentStream(dx.device()), form, gate_up, grads[0], dx, accumulate);
           });
  OfferRecompute(NameOf(form), y, {{input, "the input of a gated unit"}},
                 [form](std::span<const Tensor> in) { return Compute(form, in[0]); });
  return y;
}

}  // namespace

Tensor SwiGlu(const Tensor& gate_up) { return Gated(GateForm::kSilu, gate_up); }
Tensor GegluTanh(const Tensor& gate_up) { return Gated(GateForm::kGeluTanh, gate_up); }

}  // namespace lockstep::ops
