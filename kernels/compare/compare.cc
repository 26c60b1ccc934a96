#include "kernels/compare/compare.h"

#include "core/broadcast.h"
#include "kernels/checks.h"

namespace lockstep {
namespace {

Tensor Compare(const char* name, CompareOp op, const Tensor& a, const Tensor& b) {
  LS_CHECK(a.defined() && b.defined() && a.dtype() == b.dtype() && a.device() == b.device(), name,
           ": both operands must have the same dtype and device, got ", a.Describe(), " and ",
           b.Describe(), "; convert one with To()");
  const Shape shape = BroadcastShape(name, a.shape(), b.shape());
  const Tensor y = Tensor::Empty(shape, DType::kBool, a.device());
  compare_slot(CurrentStream(a.device()), op, a.Detach().Expand(shape), b.Detach().Expand(shape),
               y);
  return y;
}

Tensor CompareNumber(const char* name, CompareOp op, const Tensor& x, double number) {
  return Compare(name, op, x, NumberLike(name, number, x));
}
Tensor CompareNumber(const char* name, CompareOp op, double number, const Tensor& x) {
  return Compare(name, op, NumberLike(name, number, x), x);
}

void CheckBool(const char* name, const Tensor& x) {
  LS_CHECK(x.defined() && x.dtype() == DType::kBool, name, " takes bool tensors, got ",
           x.Describe(), "; ops::NotEqual(x, 0) makes one");
}

}  // namespace

namespace ops {

Tensor Equal(const Tensor& a, const Tensor& b) { return Compare("equal", CompareOp::kEqual, a, b); }
Tensor NotEqual(const Tensor& a, const Tensor& b) {
  return Compare("not_equal", CompareOp::kNotEqual, a, b);
}
Tensor Less(const Tensor& a, const Tensor& b) { return Compare("less", CompareOp::kLess, a, b); }
Tensor LessEqual(const Tensor& a, const Tensor& b) {
  return Compare("less_equal", CompareOp::kLessEqual, a, b);
}
Tensor Greater(const Tensor& a, const Tensor& b) {
  return Compare("greater", CompareOp::kLess, b, a);
}
Tensor GreaterEqual(const Tensor& a, const Tensor& b) {
  return Compare("greater_equal", CompareOp::kLessEqual, b, a);
}

Tensor Equal(const Tensor& x, double number) {
  return CompareNumber("equal", CompareOp::kEqual, x, number);
}
Tensor NotEqual(const Tensor& x, double number) {
  return CompareNumber("not_equal", CompareOp::kNotEqual, x, number);
}
Tensor Less(const Tensor& x, double number) {
  return CompareNumber("less", CompareOp::kLess, x, number);
}
Tensor LessEqual(const Tensor& x, double number) {
  return CompareNumber("less_equal", CompareOp::kLessEqual, x, number);
}
Tensor Greater(const Tensor& x, double number) {
  return CompareNumber("greater", CompareOp::kLess, number, x);
}
Tensor GreaterEqual(const Tensor& x, double number) {
  return CompareNumber("greater_equal", CompareOp::kLessEqual, number, x);
}

Tensor LogicalAnd(const Tensor& a, const Tensor& b) {
  CheckBool("logical_and", a);
  CheckBool("logical_and", b);
  return Compare("logical_and", CompareOp::kAnd, a, b);
}
Tensor LogicalOr(const Tensor& a, const Tensor& b) {
  CheckBool("logical_or", a);
  CheckBool("logical_or", b);
  return Compare("logical_or", CompareOp::kOr, a, b);
}
Tensor LogicalNot(const Tensor& x) {
  CheckBool("logical_not", x);
  return CompareNumber("logical_not", CompareOp::kEqual, x, 0);
}

Tensor IsNan(const Tensor& x) {
  CheckFloating("is_nan", x);
  return Compare("is_nan", CompareOp::kNotEqual, x, x);
}
Tensor IsFinite(const Tensor& x) {
  CheckFloating("is_finite", x);
  return Compare("is_finite", CompareOp::kFinite, x, x);
}
Tensor IsInf(const Tensor& x) {
  CheckFloating("is_inf", x);
  return LogicalNot(IsFinite(x) | IsNan(x));
}

}  // namespace ops
}  // namespace lockstep
