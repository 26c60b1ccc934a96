#include "kernels/gelu/gelu.h"

#include "core/autograd/node.h"
#include "core/autograd/recompute.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

class GeluNode : public Node {
 public:
  GeluNode(GeluForm form, const Tensor& x)
      : Node("gelu"), form_(form), x_(x, "the input of gelu") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor x = x_.Unpack();
    const GradSink::Target dx = sinks[0].Open(x);
    gelu_backward(CurrentStream(x.device()), form_, x, grads[0], dx.tensor, dx.accumulate);
  }
  void Release() override { x_.Reset(); }

 private:
  GeluForm form_;
  SavedTensor x_;
};

// x: contiguous.
Tensor Compute(GeluForm form, const Tensor& x) {
  Tensor y = Tensor::EmptyLike(x);
  gelu_forward(CurrentStream(x.device()), form, x, y);
  return y;
}

}  // namespace

void OfferGelu(GeluForm form, const Tensor& x, const Tensor& y) {
  if (!MayRedo("gelu")) return;
  OfferRedo(y,
            [form, x = SavedTensor(x, "the input of gelu")] { return Compute(form, x.Unpack()); });
}

Tensor Gelu(const Tensor& x, GeluForm form) {
  CheckFloating("gelu", x);
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Compute(form, input);
  if (NeedsGrad({&x})) Record(std::make_shared<GeluNode>(form, input), {&x}, {&y});
  OfferGelu(form, input, y);
  return y;
}

}  // namespace lockstep::ops
