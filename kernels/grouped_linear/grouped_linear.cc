#include "kernels/grouped_linear/grouped_linear.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

class GroupedLinearNode : public Node {
 public:
  GroupedLinearNode(const Tensor& x, const Tensor& weight, const Tensor& offsets)
      : Node("grouped_linear"),
        x_(Save(x, "the input of grouped_linear")),
        weight_(Save(weight, "the weight of grouped_linear")),
        offsets_(Save(offsets, "the groups of grouped_linear")) {}

  void Backward(Gradients& grads) override {
    GroupedLinearBackwardArgs args;
    args.dy = grads[0];
    args.offsets = offsets_.Unpack();
    args.dx = grads.Open(0);
    if (grads.needs(0)) args.weight = weight_.Unpack();
    args.dweight = grads.OpenAnyDType(1);
    if (grads.needs(1)) args.x = x_.Unpack();
    grouped_linear_backward(CurrentStream(args.dy.device()), args);
  }
  bool SplitsByInput() const override { return true; }

 private:
  const SavedTensor &x_, &weight_, &offsets_;
};

}  // namespace

Tensor GroupedLinear(const Tensor& x, const Tensor& weight, const Tensor& offsets) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() == 2,
           "grouped_linear: x must be a floating tensor [R, K], got ", x.Describe());
  LS_CHECK(weight.defined() && weight.ndim() == 3 && weight.dim(2) == x.dim(1),
           "grouped_linear: weight must be [E, N, ", x.dim(1),
           "] (groups, out, in) for x of shape ", x.shape(), ", got ", weight.Describe());
  LS_CHECK(weight.dtype() == x.dtype() && weight.device() == x.device(),
           "grouped_linear: x and weight must have the same dtype and device, got ", x.Describe(),
           " and ", weight.Describe(), ": cast one of them");
  LS_CHECK(offsets.defined() && offsets.dtype() == DType::kI32 && offsets.device() == x.device() &&
               offsets.shape() == Shape({weight.dim(0) + 1}),
           "grouped_linear: the offsets must be i32[", weight.dim(0) + 1, "] on ", x.device(),
           ", got ", offsets.Describe());
  const Tensor input = x.Detach().Contiguous(), w = weight.Detach().Contiguous();
  const Tensor groups = offsets.Contiguous();
  Tensor y = Tensor::Empty({x.dim(0), weight.dim(1)}, x.dtype(), x.device());
  // Before the product, which a recomputed forward that has all it needs then spares.
  std::shared_ptr<GroupedLinearNode> node;
  if (NeedsGrad({&x, &weight})) {
    node = std::make_shared<GroupedLinearNode>(weight.requires_grad() ? input : Tensor(),
                                               x.requires_grad() ? w : Tensor(), groups);
  }
  grouped_linear_forward(CurrentStream(x.device()), {input, w, groups, y});
  Record(node, {&x, &weight}, {&y});
  return y;
}

}  // namespace lockstep::ops
