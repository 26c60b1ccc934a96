// Sums, means, extremes, variances, norms and other reductions over dimensions.
#pragma once

#include <concepts>
#include <initializer_list>
#include <vector>

#include "core/slots.h"
#include "kernels/values_and_indices.h"

namespace lockstep {

namespace ops {

// One dimension, several in braces or a vector, or none.
class Dims : public std::vector<int> {
 public:
  Dims() = default;
  Dims(std::initializer_list<int> dims) : std::vector<int>(dims) {}
  Dims(const std::vector<int>& dims) : std::vector<int>(dims) {}
  template <std::integral I>
  requires(!std::same_as<I, bool>)  // a keepdim without its dimension
      Dims(I dim)
      : std::vector<int>{static_cast<int>(dim)} {}
};

// All reduce the dimensions `dims` (negative ones count from the end; none given: all). `keepdim`
// leaves them in the shape with size 1. x is floating, of any strides; Sum, the extremes, Any and
// All take any dtype.

// Sums run in f32 or wider, in trees whose shape depends only on the sizes, so the error grows with
// the logarithm of their length. Save nothing. The sum over no elements is 0; their mean is an
// error. The sum of integers or bools is exact (except for overflow of i64, which wraps around), an
// i64, and has no gradient.
Tensor Sum(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor Mean(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

// NaN if any element is. The gradient goes to the first of equal extremes, in row-major order. Save
// the positions. Over no elements: an error.
Tensor Max(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor Min(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

// Where the extreme is, i64: of equal ones the first, and the first NaN if there is one. Over
// several dimensions, it is the position in them in row-major order. No gradient. Over no elements:
// an error.
Tensor ArgMax(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor ArgMin(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

// Both along one dimension, in one pass.
//   const auto [values, indices] = ops::MaxWithIndex(logits, -1);
ValuesAndIndices MaxWithIndex(const Tensor& x, int dim, bool keepdim = false);
ValuesAndIndices MinWithIndex(const Tensor& x, int dim, bool keepdim = false);

// Var is sum((x - mean)^2) / (n - correction), over n elements; Std is its square root. In f32 or
// wider and in two passes, the second of which knows the mean. With the
// correction 1 the mean of the variances of all samples is the variance of their population; 0
// gives the variance of exactly these elements. No more than
// `correction` elements are an error. Save x and the mean, Std its result too. The gradient of Std
// is 0 where Std is 0.
Tensor Var(const Tensor& x, const Dims& dims = {}, int correction = 1, bool keepdim = false);
Tensor Std(const Tensor& x, const Dims& dims = {}, int correction = 1, bool keepdim = false);
// Var(x, dims, true) would otherwise mean a correction of 1.
Tensor Var(const Tensor& x, const Dims& dims, bool keepdim) = delete;
Tensor Std(const Tensor& x, const Dims& dims, bool keepdim) = delete;

// The vector norm (sum |x|^p)^(1/p) for p = 1 and 2, and max |x| for p = infinity; other p are an
// error. Sums are in f32 or wider and not scaled: squares beyond the range of f32 become infinity.
// The norm over no elements is 0, except for p = infinity, where it is an error. The gradient of
// |x| at 0, and of the 2-norm where it is 0, is 0; that of the infinity norm goes to the first of
// equal maxima. p = 1 saves x, p = 2 x and the norm, infinity the positions and their elements.
Tensor Norm(const Tensor& x, double p = 2, const Dims& dims = {}, bool keepdim = false);

// ln(sum e^x), computed as m + ln(sum e^(x - m)) with m = max x, in f32 or wider. Over no elements,
// or only elements of -infinity, it is -infinity, with gradients of 0. Saves x and the result.
Tensor LogSumExp(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

// The product, in f32 or wider, in a fixed order; 1 over no elements. Saves x. The gradient
// of an element is the product of the others: a quotient where no element is 0, which overflows or
// underflows where the product does; where one is 0, the product of the others.
Tensor Prod(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

// Whether any element, or each, is not 0; NaN is not. x has any dtype, the result is bool, without
// a gradient. Over no elements Any is false and All is true.
Tensor Any(const Tensor& x, const Dims& dims = {}, bool keepdim = false);
Tensor All(const Tensor& x, const Dims& dims = {}, bool keepdim = false);

}  // namespace ops

// ---- Sums of integers ----

// y[o, i] = the sum of x[o, r, i] over r. x: integers or bools, contiguous; y: i64, contiguous.
inline constinit Slot<void(const Tensor& x, const Tensor& y)> sum_integers{"sum_integers"};

// ---- Extremes ----

// The key whose maximum is searched: v, -v or |v| of an element v.
enum class Extreme { kMax, kMin, kMaxAbs };

// x: floating or i64. y[o, i] = the x[o, r, i] whose key is largest, and the first r where it is:
// index, i64[o, i]. A NaN is larger than all numbers. R > 0.
inline constinit Slot<void(Extreme extreme, const Tensor& x, const Tensor& y, const Tensor& index)>
    reduce_extreme{"reduce_extreme"};
// dx[o, r, i] = dy[o, i] where r == index[o, i], else 0; or dx += that.
inline constinit Slot<void(const Tensor& dy, const Tensor& index, const Tensor& dx,
                           bool accumulate)>
    reduce_extreme_backward{"reduce_extreme_backward"};

// ---- Folds ----

// What is added up of the elements v of a column, whose shift is s (0 where there is none), and
// what becomes of the total.
enum class ReduceFold {
  kVariance,        // scale sum (v - s)^2
  kDeviation,       // sqrt(scale sum (v - s)^2)
  kAbsSum,          // sum |v|
  kNorm,            // sqrt(sum v^2)
  kLogSumExp,       // s + ln(sum e^(v - s)), where s counts as 0 if it is infinite
  kProduct,         // the product of v
  kNonzeroProduct,  // the product of v != 0
  kZeros,           // the number of v == 0
  kNonzeros,        // the number of v != 0
  kNoZeros,         // 1 if no v == 0, else 0
};

// y[o, i] = the fold of x[o, r, i] over r. shift and y: f64[o, i] if x is f64, else f32[o, i];
// shift may be undefined. x is floating or bool.
inline constinit Slot<void(ReduceFold fold, const Tensor& x, const Tensor& shift, double scale,
                           const Tensor& y)>
    reduce_fold{"reduce_fold"};
// dx[o, r, i] = the fold's derivative by it times dy[o, i], or dx += that. a and b: of the shape
// and dtype of the fold's result, or undefined where they aren't used:
//   kVariance     2 scale (v - a), with the shift as a
//   kDeviation    scale (v - a) / b, with the result as b; 0 where b is
//   kAbsSum       the sign of v
//   kNorm         v / b, with the result as b; 0 where b is
//   kLogSumExp    e^(v - b), with the result as b
//   kProduct      with kNonzeroProduct's result as a, and that of kZeros as b
// The other folds have none.
inline constinit Slot<void(ReduceFold fold, const Tensor& x, const Tensor& a, const Tensor& b,
                           double scale, const Tensor& dy, const Tensor& dx, bool accumulate)>
    reduce_fold_backward{"reduce_fold_backward"};

}  // namespace lockstep
