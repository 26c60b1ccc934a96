#include "kernels/where/where.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "core/broadcast.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

// All expand to `shape`.
Tensor Choose(const Tensor& condition, const Tensor& a, const Tensor& b, const Shape& shape) {
  const Tensor y = Tensor::Empty(shape, a.dtype(), a.device());
  where_slot(CurrentStream(a.device()), condition.Expand(shape), a.Expand(shape), b.Expand(shape),
             y);
  return y;
}

class WhereNode : public Node {
 public:
  WhereNode(const Tensor& condition, const Shape& a, const Shape& b)
      : Node("where"), shapes_{a, b}, condition_(condition, "the condition of where") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    const Tensor condition = condition_.Unpack();
    const Tensor zero = Tensor::Zeros({}, dy.dtype(), dy.device());
    for (int which = 0; which < 2; ++which) {
      if (!needs[which]) continue;
      const Tensor terms = which == 0 ? Choose(condition, dy, zero, dy.shape())
                                      : Choose(condition, zero, dy, dy.shape());
      if (terms.numel() == shapes_[which].numel()) {
        sinks[which].Put(terms.View(shapes_[which]));
      } else {
        const GradSink::Target dx = sinks[which].Open(shapes_[which], dy.dtype(), dy.device());
        SumExpanded(terms, 1, dx.tensor, dx.accumulate);
      }
    }
  }
  void Release() override { condition_.Reset(); }

 private:
  Shape shapes_[2];  // of a and b
  SavedTensor condition_;
};

}  // namespace

Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  LS_CHECK(condition.defined() && condition.dtype() == DType::kBool,
           "where: the condition must be a bool tensor, got ", condition.Describe(),
           ": write condition.To(DType::kBool)");
  LS_CHECK(a.defined() && b.defined() && a.dtype() == b.dtype() && a.device() == b.device() &&
               a.device() == condition.device(),
           "where: both choices must have the same dtype, and the condition's device ",
           condition.device(), ", got ", a.Describe(), " and ", b.Describe());
  const Shape shape =
      BroadcastShape("where", condition.shape(), BroadcastShape("where", a.shape(), b.shape()));
  Tensor y = Choose(condition, a.Detach(), b.Detach(), shape);
  if (NeedsGrad({&a, &b})) {
    Record(std::make_shared<WhereNode>(condition, a.shape(), b.shape()), {&a, &b}, {&y});
  }
  return y;
}

Tensor Where(const Tensor& condition, const Tensor& a, double b) {
  return Where(condition, a, NumberLike("where", b, a));
}
Tensor Where(const Tensor& condition, double a, const Tensor& b) {
  return Where(condition, NumberLike("where", a, b), b);
}
Tensor Where(const Tensor& condition, double a, double b) {
  LS_CHECK(condition.defined(), "where: the condition must be a bool tensor, got undefined tensor");
  const auto number = [&](double value) {
    return Tensor::Full({}, value, DType::kF32, condition.device());
  };
  return Where(condition, number(a), number(b));
}

}  // namespace lockstep::ops
