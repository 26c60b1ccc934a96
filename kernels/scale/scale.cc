#include "kernels/scale/scale.h"

#include "core/autograd.h"

namespace lockstep::ops {
namespace {

class ScaleNode : public Node {
 public:
  explicit ScaleNode(double alpha) : Node("scale"), alpha_(alpha) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    const GradSink::Target dx = sinks[0].Open(dy);
    scale_slot(CurrentStream(dy.device()), dy, alpha_, dx.tensor, dx.accumulate);
  }
  void Release() override {}

 private:
  double alpha_;
};

}  // namespace

Tensor Scale(const Tensor& x, double alpha) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()), "scale: x must be a floating tensor, got ",
           x.Describe());
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Tensor::EmptyLike(input);
  scale_slot(CurrentStream(x.device()), input, alpha, y, false);
  if (NeedsGrad({&x})) Record(std::make_shared<ScaleNode>(alpha), {&x}, {&y});
  return y;
}

void ScaleInPlace(const Tensor& x, double alpha) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.is_contiguous(),
           "ScaleInPlace: x must be a contiguous floating tensor, got ", x.Describe());
  LS_CHECK(!NeedsGrad({&x}),
           "ScaleInPlace of a tensor that requires a gradient: use ops::Scale, or Detach() first");
  x.storage().BumpVersion();
  scale_slot(CurrentStream(x.device()), x, alpha, x, false);
}

}  // namespace lockstep::ops
