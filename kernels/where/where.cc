#include "kernels/where/where.h"

#include "core/autograd/node.h"
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
  RecordOp("where", {&a, &b}, {&y}, {{condition, "the condition of where"}},
           [](const SavedTensors& saved, Gradients& grads) {
             const Tensor& dy = grads[0];
             const Tensor zero = Tensor::Zeros({}, dy.dtype(), dy.device());
             for (const size_t i : {0, 1}) {
               if (!grads.needs(i)) continue;
               const Tensor terms = i == 0 ? Choose(saved[0], dy, zero, dy.shape())
                                           : Choose(saved[0], zero, dy, dy.shape());
               const Shape& shape = grads.spec(i).shape;
               if (terms.numel() == shape.numel()) {
                 grads.Put(i, terms.View(shape));
               } else {
                 const auto [dx, accumulate] = grads.Open(i);
                 SumExpanded(terms, 1, dx, accumulate);
               }
             }
           });
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
