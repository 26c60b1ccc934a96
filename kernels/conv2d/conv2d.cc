#include "kernels/conv2d/conv2d.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

class Conv2dNode : public Node {
 public:
  // x is kept for the weight's gradient, the weight for that of x: undefined where not needed.
  Conv2dNode(const Conv2dShape& shape, const Tensor& x, const Tensor& weight)
      : Node("conv2d"),
        shape_(shape),
        x_(Save(x, "the input of conv2d")),
        weight_(Save(weight, "the weight of conv2d")) {}

  void Backward(Gradients& grads) override {
    const Tensor& dy = grads[0];
    const Stream stream = CurrentStream(dy.device());
    if (const auto [dx, accumulate] = grads.Open(0); dx.defined()) {
      conv2d_backward_input(stream, shape_, dy, weight_.Unpack(), dx, accumulate);
    }
    if (!grads.needs(1) && !grads.needs(2)) return;
    const Tensor x = grads.needs(1) ? x_.Unpack() : Tensor();
    const GradTarget dweight = grads.OpenAnyDType(1), dbias = grads.OpenAnyDType(2);
    conv2d_backward_weight(stream, shape_, x, dy, dweight, dbias);
  }
  bool SplitsByInput() const override { return true; }

 private:
  Conv2dShape shape_;
  const SavedTensor &x_, &weight_;
};

Conv2dShape Check(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const Conv2dOptions& o) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() == 4,
           "conv2d: x must be a floating [N, C, H, W], got ", x.Describe(),
           x.defined() && x.ndim() == 3 ? ": reshape one image to [1, C, H, W]" : "");
  LS_CHECK(o.groups >= 1 && x.dim(1) % o.groups == 0, "conv2d: groups must divide the ", x.dim(1),
           " channels of x, got ", o.groups);
  const int64_t channels = x.dim(1) / o.groups;
  LS_CHECK(weight.defined() && weight.ndim() == 4 && weight.dim(1) == channels,
           "conv2d: weight must be [O, ", channels, ", kh, kw] for x of shape ", x.shape(), " in ",
           o.groups, o.groups == 1 ? " group" : " groups", ", got ", weight.Describe());
  LS_CHECK(weight.dim(0) % o.groups == 0, "conv2d: groups must divide the ", weight.dim(0),
           " filters of the weight, got ", o.groups);
  LS_CHECK(weight.dtype() == x.dtype() && weight.device() == x.device(),
           "conv2d: x and weight must have the same dtype and device, got ", x.Describe(), " and ",
           weight.Describe(), ": cast one of them");
  if (bias.defined()) {
    LS_CHECK(bias.shape() == Shape{weight.dim(0)} && bias.dtype() == x.dtype() &&
                 bias.device() == x.device(),
             "conv2d: bias must be ", x.dtype(), "[", weight.dim(0), "] on ", x.device(), ", got ",
             bias.Describe());
  }
  return {x.dim(0),
          o.groups,
          channels,
          weight.dim(0) / o.groups,
          MakeWindowAxis("conv2d", "rows", x.dim(2), weight.dim(2), o.stride.h, o.padding.h,
                         o.dilation.h),
          MakeWindowAxis("conv2d", "columns", x.dim(3), weight.dim(3), o.stride.w, o.padding.w,
                         o.dilation.w)};
}

}  // namespace

Tensor Conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  const Conv2dShape shape = Check(x, weight, bias, options);
  const Tensor input = x.Detach().Contiguous();
  const Tensor w = weight.Detach().Contiguous();
  const Tensor b = bias.defined() ? bias.Detach().Contiguous() : Tensor();
  Tensor y = Tensor::Empty({shape.images, weight.dim(0), shape.rows.out, shape.columns.out},
                           x.dtype(), x.device());
  conv2d_forward(CurrentStream(x.device()), shape, input, w, b, y);
  std::shared_ptr<Conv2dNode> node;
  if (NeedsGrad({&x, &weight, &bias})) {
    node = std::make_shared<Conv2dNode>(shape, weight.requires_grad() ? input : Tensor(),
                                        x.requires_grad() ? w : Tensor());
  }
  Record(node, {&x, &weight, &bias}, {&y});
  return y;
}

}  // namespace lockstep::ops
