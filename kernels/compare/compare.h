// Comparisons, whose results are masks for ops::Where, and logic on masks.
#pragma once

#include "core/dispatcher.h"
#include "core/tensor.h"

namespace lockstep {

// kAnd and kOr are of bools. kFinite is of a, whatever b is.
enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kAnd, kOr, kFinite };

namespace ops {

// Elementwise, of two tensors of the same dtype, any dtype, and the same device, with any strides
// and NumPy's broadcasting; the result is a contiguous bool tensor. NaN is not equal to anything,
// and neither less nor greater. No gradient, and nothing is saved.
Tensor Equal(const Tensor& a, const Tensor& b);
Tensor NotEqual(const Tensor& a, const Tensor& b);
Tensor Less(const Tensor& a, const Tensor& b);
Tensor LessEqual(const Tensor& a, const Tensor& b);
Tensor Greater(const Tensor& a, const Tensor& b);
Tensor GreaterEqual(const Tensor& a, const Tensor& b);

// With a number: it is rounded to x's dtype if that is floating, and must be one of its values
// otherwise.
Tensor Equal(const Tensor& x, double number);
Tensor NotEqual(const Tensor& x, double number);
Tensor Less(const Tensor& x, double number);
Tensor LessEqual(const Tensor& x, double number);
Tensor Greater(const Tensor& x, double number);
Tensor GreaterEqual(const Tensor& x, double number);

// For bool tensors. Compare those of other dtypes first: NotEqual(x, 0).
Tensor LogicalAnd(const Tensor& a, const Tensor& b);
Tensor LogicalOr(const Tensor& a, const Tensor& b);
Tensor LogicalNot(const Tensor& x);

// For floating tensors.
Tensor IsNan(const Tensor& x);
Tensor IsFinite(const Tensor& x);  // neither NaN nor infinite
Tensor IsInf(const Tensor& x);     // of either sign

}  // namespace ops

// There is no operator== of tensors, and no !=: containers and tests take them to answer with one
// bool. Nor && and ||, which would not skip their second operand: & and |.
inline Tensor operator<(const Tensor& a, const Tensor& b) { return ops::Less(a, b); }
inline Tensor operator<(const Tensor& x, double number) { return ops::Less(x, number); }
inline Tensor operator<(double number, const Tensor& x) { return ops::Greater(x, number); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return ops::LessEqual(a, b); }
inline Tensor operator<=(const Tensor& x, double number) { return ops::LessEqual(x, number); }
inline Tensor operator<=(double number, const Tensor& x) { return ops::GreaterEqual(x, number); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return ops::Greater(a, b); }
inline Tensor operator>(const Tensor& x, double number) { return ops::Greater(x, number); }
inline Tensor operator>(double number, const Tensor& x) { return ops::Less(x, number); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ops::GreaterEqual(a, b); }
inline Tensor operator>=(const Tensor& x, double number) { return ops::GreaterEqual(x, number); }
inline Tensor operator>=(double number, const Tensor& x) { return ops::LessEqual(x, number); }
inline Tensor operator&(const Tensor& a, const Tensor& b) { return ops::LogicalAnd(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return ops::LogicalOr(a, b); }
inline Tensor operator!(const Tensor& x) { return ops::LogicalNot(x); }

// y = whether a op b. All have y's shape, a and b the same dtype and any strides; y: contiguous
// bool.
inline constinit Slot<void(CompareOp op, const Tensor& a, const Tensor& b, const Tensor& y)>
    compare_slot{"compare"};

}  // namespace lockstep
