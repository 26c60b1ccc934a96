#include "kernels/activation/activation.h"

#include "core/autograd/node.h"
#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

class ActivationNode : public Node {
 public:
  ActivationNode(Nonlinearity kind, const char* name, const Tensor& saved)
      : Node(name), kind_(kind), saved_(saved, "the input or result of an activation") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor saved = saved_.Unpack();
    const GradSink::Target dx = sinks[0].Open(saved);
    activation_backward(CurrentStream(saved.device()), kind_, saved, grads[0], dx.tensor,
                        dx.accumulate);
  }
  void Release() override { saved_.Reset(); }

 private:
  Nonlinearity kind_;
  SavedTensor saved_;
};

// x: contiguous.
Tensor Compute(Nonlinearity kind, const Tensor& x) {
  Tensor y = Tensor::EmptyLike(x);
  activation_forward(CurrentStream(x.device()), kind, x, y);
  return y;
}

Tensor Apply(Nonlinearity kind, const char* name, const Tensor& x) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()), name, ": x must be a floating tensor, got ",
           x.Describe());
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Compute(kind, input);
  if (NeedsGrad({&x})) {
    const Tensor& saved = kind == Nonlinearity::kRelu ? y : input;
    Record(std::make_shared<ActivationNode>(kind, name, saved), {&x}, {&y});
  }
  // Not Relu's, which needs its result itself.
  if (kind != Nonlinearity::kRelu && MayRedo(name)) {
    OfferRedo(y, [kind, x = SavedTensor(input, "the input of an activation")] {
      return Compute(kind, x.Unpack());
    });
  }
  return y;
}

}  // namespace

Tensor Relu(const Tensor& x) { return Apply(Nonlinearity::kRelu, "relu", x); }
Tensor Tanh(const Tensor& x) { return Apply(Nonlinearity::kTanh, "tanh", x); }
Tensor Sigmoid(const Tensor& x) { return Apply(Nonlinearity::kSigmoid, "sigmoid", x); }
Tensor Silu(const Tensor& x) { return Apply(Nonlinearity::kSilu, "silu", x); }

}  // namespace lockstep::ops
