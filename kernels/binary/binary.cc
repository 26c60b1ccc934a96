#include "kernels/binary/binary.h"

#include <cmath>
#include <limits>

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "core/broadcast.h"
#include "core/math.h"
#include "kernels/checks.h"
#include "kernels/integers.h"
#include "kernels/unary/unary.h"

namespace lockstep::ops {
namespace {

constexpr const char* kNames[] = {"add", "sub", "mul", "div", "maximum", "minimum", "pow"};
const char* NameOf(BinaryOp op) { return kNames[static_cast<int>(op)]; }

// a op b = b op a, bit for bit.
bool IsCommutative(BinaryOp op) {
  return op == BinaryOp::kMul || op == BinaryOp::kMaximum || op == BinaryOp::kMinimum;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class BinaryNode : public Node {
 public:
  // a and b as given, not expanded.
  BinaryNode(BinaryOp op, const Tensor& a, const Tensor& b, bool needs_a, bool needs_b)
      : Node(NameOf(op)), op_(op), shapes_{a.shape(), b.shape()} {
    // d(ab) = b da + a db; d(a/b) = da / b - a db / b^2; the others need both for either.
    const bool product = op == BinaryOp::kMul, quotient = op == BinaryOp::kDiv;
    const bool both = op >= BinaryOp::kMaximum;
    if (both || ((product || quotient) && needs_b)) {
      a_ = SavedTensor(a, "the first operand of an elementwise operation");
    }
    if (both || quotient || (product && needs_a)) {
      b_ = SavedTensor(b, "the second operand of an elementwise operation");
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

  // What dy contributes to operand `which`, in dx, of dy's shape.
  void Terms(int which, const Tensor& a, const Tensor& b, const Tensor& dy, const Tensor& dx,
             bool accumulate) {
    const bool exchanged = which == 1 && IsCommutative(op_);
    binary_backward(CurrentStream(dy.device()), op_, exchanged ? 0 : which, exchanged ? b : a,
                    exchanged ? a : b, dy, dx, accumulate);
  }

  void BackwardTo(int which, const Tensor& a, const Tensor& b, const Tensor& dy, GradSink& sink) {
    const bool sum = op_ == BinaryOp::kAdd || op_ == BinaryOp::kSub;
    const bool negative = op_ == BinaryOp::kSub && which == 1;
    const bool expanded = dy.numel() != shapes_[which].numel();
    if (!expanded && sum && !negative) {
      sink.Put(dy.View(shapes_[which]));
      return;
    }
    const GradSink::Target dx = sink.Open(shapes_[which], dy.dtype(), dy.device());
    if (!expanded) {
      Terms(which, a, b, dy, dx.tensor.View(dy.shape()), dx.accumulate);
    } else if (sum) {
      SumExpanded(dy, negative ? -1 : 1, dx.tensor, dx.accumulate);
    } else {
      const DType dtype = AccumulationDType(dy.dtype());
      const Tensor terms = Tensor::Empty(dy.shape(), dtype, dy.device());
      Terms(which, a, b, dy, terms, false);
      SumExpanded(terms, 1, dx.tensor, dx.accumulate);
    }
  }

  BinaryOp op_;
  Shape shapes_[2];
  SavedTensor a_, b_;
};

// Integers have the first three, the maximum and the minimum.
bool TakesIntegers(BinaryOp op) { return op != BinaryOp::kDiv && op != BinaryOp::kPow; }

Tensor OfIntegers(BinaryOp op, const Tensor& a, const Tensor& b) {
  const IntegerOp integer_op = op == BinaryOp::kAdd       ? IntegerOp::kAdd
                               : op == BinaryOp::kSub     ? IntegerOp::kSub
                               : op == BinaryOp::kMul     ? IntegerOp::kMul
                               : op == BinaryOp::kMaximum ? IntegerOp::kMaximum
                                                          : IntegerOp::kMinimum;
  return IntegerArithmetic(NameOf(op), integer_op, a, b);
}

Tensor Apply(BinaryOp op, const Tensor& a, const Tensor& b) {
  if (TakesIntegers(op) && a.defined() && b.defined() && IsInteger(a.dtype()) &&
      a.dtype() == b.dtype() && a.device() == b.device()) {
    return OfIntegers(op, a, b);
  }
  LS_CHECK(a.defined() && b.defined() && IsFloating(a.dtype()) && a.dtype() == b.dtype() &&
               a.device() == b.device(),
           NameOf(op), ": both operands must have the same floating dtype and device, got ",
           a.Describe(), " and ", b.Describe(), "; convert them with ops::Cast or To()");
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

bool HasIntegers(const Tensor& x) { return x.defined() && IsInteger(x.dtype()); }

}  // namespace

Tensor Add(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kAdd, a, b); }
Tensor Sub(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kSub, a, b); }
Tensor Mul(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kMul, a, b); }
Tensor Div(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kDiv, a, b); }
Tensor Maximum(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kMaximum, a, b); }
Tensor Minimum(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kMinimum, a, b); }
Tensor Pow(const Tensor& a, const Tensor& b) { return Apply(BinaryOp::kPow, a, b); }

Tensor Add(const Tensor& x, double number) {
  if (HasIntegers(x)) return Add(x, NumberLike("add", number, x));
  return Unary(UnaryOp::kAddNumber, x, number);
}
Tensor Sub(const Tensor& x, double number) {
  if (HasIntegers(x)) return Sub(x, NumberLike("sub", number, x));
  return Unary(UnaryOp::kSubNumber, x, number);
}
Tensor Sub(double number, const Tensor& x) {
  if (HasIntegers(x)) return Sub(NumberLike("sub", number, x), x);
  return Unary(UnaryOp::kSubFrom, x, number);
}
Tensor Div(double number, const Tensor& x) { return Unary(UnaryOp::kDivideInto, x, number); }
Tensor Maximum(const Tensor& x, double number) {
  // Clamp takes neither NaN nor integers.
  if (std::isnan(number) || HasIntegers(x)) return Maximum(x, NumberLike("maximum", number, x));
  return Clamp(x, number, kInfinity);
}
Tensor Minimum(const Tensor& x, double number) {
  if (std::isnan(number) || HasIntegers(x)) return Minimum(x, NumberLike("minimum", number, x));
  return Clamp(x, -kInfinity, number);
}
Tensor Pow(double number, const Tensor& x) {
  return Unary(UnaryOp::kPowOf, x, number, number == 0 ? 0 : math::Log(number));
}

}  // namespace lockstep::ops
