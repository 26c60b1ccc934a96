#include "kernels/linear/linear.h"

#include "core/autograd/engine.h"
#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/gelu/gelu.h"
#include "kernels/matrix.h"

namespace lockstep::ops {
namespace {

class LinearNode : public Node {
 public:
  // x is kept for the weight's gradient, the weight for that of x: undefined where not needed.
  LinearNode(const Tensor& x, const Tensor& weight, const Tensor& pre_activation,
             Activation activation, bool full_f32)
      : Node("linear"),
        x_(Save(x, "the input of linear")),
        weight_(Save(weight, "the weight of linear")),
        pre_activation_(Save(pre_activation, "the pre-activation of linear")),
        activation_(activation),
        full_f32_(full_f32) {}

  void Backward(Gradients& grads) override {
    const Stream stream = CurrentStream(grads[0].device());
    const Tensor dy = GradientBeforeActivation(stream, grads[0]);
    // If x is the result of a linear with an activation, and has no other use, then its gradient
    // takes in that activation's derivative while it is still in the cache.
    auto* before = dynamic_cast<LinearNode*>(grads.receiver(0));
    if (before != nullptr && before->activation_ == Activation::kNone) before = nullptr;
    LinearBackwardArgs args;
    args.dy = dy;
    args.full_f32 = full_f32_;
    if (grads.needs(0)) args.weight = weight_.Unpack();
    if (grads.needs(1)) args.x = AsMatrix(x_.Unpack());
    if (const auto [dx, accumulate] = grads.Open(0); dx.defined()) {
      args.dx = {AsMatrix(dx), accumulate};
      if (before != nullptr) {
        args.activation = before->activation_;
        args.pre_activation = AsMatrix(before->pre_activation_.Unpack());
      }
    }
    args.dweight = grads.OpenAnyDType(1);
    args.dbias = grads.OpenAnyDType(2);
    linear_backward(stream, args);
    if (before != nullptr) before->activation_is_done_ = true;  // last: nothing can fail any more
  }

  bool SplitsByInput() const override {
    return activation_ == Activation::kNone || activation_is_done_;
  }

 private:
  // The gradient of the output, as a matrix, times the activation's derivative.
  Tensor GradientBeforeActivation(Stream stream, const Tensor& grad) const {
    const bool overwrite = MayOverwrite(grad);
    const Tensor dy = AsMatrix(grad.Contiguous());
    if (activation_ == Activation::kNone || activation_is_done_) return dy;
    const Tensor d_pre = overwrite ? dy : Tensor::EmptyLike(dy);
    if (overwrite) dy.storage().BumpVersion();
    linear_backward_activation(stream,
                               {activation_, AsMatrix(pre_activation_.Unpack()), dy, d_pre});
    return d_pre;
  }

  const SavedTensor &x_, &weight_, &pre_activation_;
  Activation activation_;
  bool full_f32_;
  bool activation_is_done_ = false;  // incoming gradients include the activation's derivative
};

void Check(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 1,
           "linear: x must be a floating tensor [..., K], got ", x.Describe());
  LS_CHECK(weight.defined() && weight.ndim() == 2 && weight.dim(1) == x.dim(-1),
           "linear: weight must be [N, ", x.dim(-1), "] (out, in) for x of shape ", x.shape(),
           ", got ", weight.Describe());
  LS_CHECK(weight.dtype() == x.dtype() && weight.device() == x.device(),
           "linear: x and weight must have the same dtype and device, got ", x.Describe(), " and ",
           weight.Describe(), ": cast one of them");
  if (!bias.defined()) return;
  LS_CHECK(bias.shape() == Shape({weight.dim(0)}), "linear: bias must be [", weight.dim(0),
           "] for a weight of shape ", weight.shape(), ", got ", bias.Describe());
  LS_CHECK(bias.dtype() == x.dtype() && bias.device() == x.device(),
           "linear: x and bias must have the same dtype and device, got ", x.Describe(), " and ",
           bias.Describe(), ": cast one of them");
}

}  // namespace

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation,
              bool full_f32) {
  Check(x, weight, bias);
  const bool record = NeedsGrad({&x, &weight, &bias});
  LinearForwardArgs args;
  const Tensor input = x.Detach().Contiguous();
  args.x = AsMatrix(input);
  args.weight = weight.Detach().Contiguous();
  if (bias.defined()) args.bias = bias.Detach().Contiguous();
  args.activation = activation;
  args.full_f32 = full_f32;
  Tensor y = Tensor::Empty(WithLast(x.shape(), weight.dim(0)), x.dtype(), x.device());
  args.y = AsMatrix(y);
  if (record && activation != Activation::kNone) args.pre_activation = Tensor::EmptyLike(args.y);
  const auto save = [&] {
    return std::make_shared<LinearNode>(weight.requires_grad() ? input : Tensor(),
                                        x.requires_grad() ? args.weight : Tensor(),
                                        args.pre_activation, activation, full_f32);
  };
  // If possible before the product, which a recomputed forward that has all it needs then spares.
  std::shared_ptr<LinearNode> node;
  if (record && activation == Activation::kNone) node = save();
  linear_forward(CurrentStream(x.device()), args);
  if (record && !node) node = save();
  Record(node, {&x, &weight, &bias}, {&y});
  OfferActivation(args.pre_activation, y);
  return y;
}

void OfferActivation(const Tensor& pre_activation, const Tensor& y) {
  // Elsewhere the product's epilogue has bits of its own: those of an unrounded sum, or cuBLAS'.
  const bool exact = y.device().is_cpu() || y.device().is_meta();
  if (pre_activation.defined() && exact && SizeOf(y.dtype()) >= 4) {
    OfferGelu(GeluForm::kTanh, pre_activation, y);
  }
}

}  // namespace lockstep::ops
