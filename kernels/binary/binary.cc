#include "kernels/binary/binary.h"

#include <cmath>
#include <limits>

#include "core/autograd/node.h"
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

Tensor Expanded(const Tensor& saved, const Shape& shape) {
  return saved.defined() ? saved.Expand(shape) : Tensor();
}

// The gradient of operand `which`; a and b have the result's shape.
void Backward(BinaryOp op, int which, const Tensor& a, const Tensor& b, Gradients& grads) {
  const auto input = static_cast<size_t>(which);
  if (!grads.needs(input)) return;
  const Tensor& dy = grads[0];
  const Shape& shape = grads.spec(input).shape;
  const bool sum = op == BinaryOp::kAdd || op == BinaryOp::kSub;
  const bool negative = op == BinaryOp::kSub && which == 1;
  const bool expanded = dy.numel() != shape.numel();
  if (!expanded && sum && !negative) return grads.Put(input, dy.View(shape));
  // What dy contributes, in `to`, of dy's shape.
  const auto terms = [&](const Tensor& to, bool accumulate) {
    const bool exchanged = which == 1 && IsCommutative(op);
    binary_backward(CurrentStream(dy.device()), op, exchanged ? 0 : which, exchanged ? b : a,
                    exchanged ? a : b, dy, to, accumulate);
  };
  const auto [dx, accumulate] = grads.Open(input);
  if (!expanded) {
    terms(dx.View(dy.shape()), accumulate);
  } else if (sum) {
    SumExpanded(dy, negative ? -1 : 1, dx, accumulate);
  } else {
    const Tensor wide = Tensor::Empty(dy.shape(), AccumulationDType(dy.dtype()), dy.device());
    terms(wide, false);
    SumExpanded(wide, 1, dx, accumulate);
  }
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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
  // d(ab) = b da + a db; d(a/b) = da / b - a db / b^2; the others need both for either.
  const bool product = op == BinaryOp::kMul, quotient = op == BinaryOp::kDiv;
  const bool both = op >= BinaryOp::kMaximum;
  const bool keeps_a = both || ((product || quotient) && b.requires_grad());
  const bool keeps_b = both || quotient || (product && a.requires_grad());
  RecordOp(NameOf(op), {&a, &b}, {&y},
           {{keeps_a ? a : Tensor(), "the first operand of an elementwise operation"},
            {keeps_b ? b : Tensor(), "the second operand of an elementwise operation"}},
           [op](const SavedTensors& saved, Gradients& grads) {
             const Tensor a = Expanded(saved[0], grads[0].shape());
             const Tensor b = Expanded(saved[1], grads[0].shape());
             for (const int which : {0, 1}) Backward(op, which, a, b, grads);
           });
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
