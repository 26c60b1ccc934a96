#include "kernels/swiglu/swiglu.h"

#include "core/autograd/node.h"
#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

const char* NameOf(GateForm form) { return form == GateForm::kSilu ? "swiglu" : "geglu_tanh"; }

class SwiGluNode : public Node {
 public:
  SwiGluNode(GateForm form, const Tensor& gate_up)
      : Node(NameOf(form)), form_(form), gate_up_(gate_up, "the input of a gated unit") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor gate_up = gate_up_.Unpack();
    const GradSink::Target dx = sinks[0].Open(gate_up);
    swiglu_backward(CurrentStream(gate_up.device()), form_, gate_up, grads[0].Contiguous(),
                    dx.tensor, dx.accumulate);
  }
  void Release() override { gate_up_.Reset(); }

 private:
  GateForm form_;
  SavedTensor gate_up_;
};

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
  if (NeedsGrad({&gate_up})) Record(std::make_shared<SwiGluNode>(form, input), {&gate_up}, {&y});
  if (MayRedo(NameOf(form))) {
    OfferRedo(y, [form, x = SavedTensor(input, "the input of a gated unit")] {
      return Compute(form, x.Unpack());
    });
  }
  return y;
}

}  // namespace

Tensor SwiGlu(const Tensor& gate_up) { return Gated(GateForm::kSilu, gate_up); }
Tensor GegluTanh(const Tensor& gate_up) { return Gated(GateForm::kGeluTanh, gate_up); }

}  // namespace lockstep::ops
