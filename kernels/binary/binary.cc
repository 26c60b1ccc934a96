#include "kernels/binary/binary.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "core/broadcast.h"

namespace lockstep::ops {
namespace {

constexpr const char* kNames[] = {"add", "sub", "mul", "div"};
const char* NameOf(BinaryOp op) { return kNames[static_cast<int>(op)]; }

class BinaryNode : public Node {
 public:
  // a and b as given, not expanded.
  BinaryNode(BinaryOp op, const Tensor& a, const Tensor& b, bool needs_a, bool needs_b)
      : Node(NameOf(op)), op_(op), shapes_{a.shape(), b.shape()} {
    // d(ab) = b da + a db; d(a/b) = da / b - a db / b^2.
    const bool product = op == BinaryOp::kMul || op == BinaryOp::kDiv;
    if (product && needs_b) a_ = SavedTensor(a, "the first operand of a product or quotient");
    if (op == BinaryOp::kDiv || (product && needs_a)) {
      b_ = SavedTensor(b, "the second operand of a product or quotient");
    }
  }

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    const Tensor a = Expanded(a_, dy.shape()), b = Expanded(b_, dy.shape());
    for (int which = 0; which < 2; ++which) {
      if (needs[which]) BackwardTo(which, a, b, dy, sinks[which]);
    }
  }
  void Release() override {
    a_.Reset();
    b_.Reset();
  }

 private:
  static Tensor Expanded(const SavedTensor& saved, const Shape& shape) {
    return saved.defined() ? saved.Unpack().Expand(shape) : Tensor();
  }

  void BackwardTo(int which, const Tensor& a, const Tensor& b, const Tensor& dy, GradSink& sink) {
    const Stream stream = CurrentStream(dy.device());
    const bool sum = op_ == BinaryOp::kAdd || op_ == BinaryOp::kSub;
    const bool negative = op_ == BinaryOp::kSub && which == 1;
    const bool expanded = dy.numel() != shapes_[which].numel();
    if (!expanded && sum && !negative) {
      sink.Put(dy.View(shapes_[which]));
      return;
    }
    const GradSink::Target dx = sink.Open(shapes_[which], dy.dtype(), dy.device());
    if (!expanded) {
      binary_backward(stream, op_, which, a, b, dy, dx.tensor.View(dy.shape()), dx.accumulate);
    } else if (sum) {
      SumExpanded(dy, negative ? -1 : 1, dx.tensor, dx.accumulate);
    } else {
      const DType dtype = dy.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
      const Tensor terms = Tensor::Empty(dy.shape(), dtype, dy.device());
      binary_backward(stream, op_, which, a, b, dy, terms, false);
      SumExpanded(terms, 1, dx.tensor, dx.accumulate);
    }
  }

  BinaryOp op_;
  Shape shapes_[2];
  SavedTensor a_, b_;
};

Tensor Apply(BinaryOp op, const Tensor& a, const Tensor& b) {
  LS_CHECK(a.defined() && b.defined() && IsFloating(a.dtype()) && a.dtype() == b.dtype() &&
               a.device() == b.device(),
           NameOf(op), ": both operands must have the same floating dtype and device, got ",
           a.Describe(), " and ", b.Describe(), "; convert one with ops::Cast or To()");
  const Shape shape = BroadcastShape(NameOf(op), a.shape(), b.shape());
  Tensor y = Tensor::Empty(shape, a.dtype(), a.device());
  binary_forward(CurrentStream(a.device()), op, a.Detach().Expand(shape), b.Detach().Expand(shape),
                 y);
  if (NeedsGrad({&a, &b})) {
    Record(std::make_shared<BinaryNode>(op, a.Detach(), b.Detach(), a.requires_grad(),
                                        b.requires_grad()),
           {&a, &b}, {&y});
  }
  return y;
}

}  // namespace

Tensor Add(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kAdd, a, b); }
Tensor Sub(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kSub, a, b); }
Tensor Mul(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kMul, a, b); }
Tensor Div(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kDiv, a, b); }

}  // namespace lockstep::ops
