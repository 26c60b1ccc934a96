#include "kernels/reduce/reduce.h"

#include <limits>

#include "core/autograd/node.h"
#include "kernels/checks.h"
#include "kernels/scale/scale.h"

namespace lockstep::ops {
namespace {

// How the kernels see a reduction: [outer, reduced, inner]. Where the reduced dimensions are not
// neighbours, the input is first permuted so that they come last.
struct Layout {
  Shape shape;             // of x
  Shape kept, result;      // of y with size 1 for reduced dimensions; of y
  std::vector<int> order;  // the permutation; empty: none
  Shape permuted;          // of x after it
  int64_t outer = 1, reduced = 1, inner = 1;

  Shape Blocks() const { return {outer, reduced, inner}; }
};

std::vector<bool> ReducedDims(const char* op, const Shape& shape, const std::vector<int>& dims) {
  std::vector<bool> reduced(shape.ndim(), dims.empty());
  for (int d : dims) {
    const int at = DimOf(op, shape, d);
    LS_CHECK(!reduced[at], op, ": dimension ", d, " is given twice");
    reduced[at] = true;
  }
  return reduced;
}

Layout MakeLayout(const char* op, const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  const std::vector<bool> reduced = ReducedDims(op, x.shape(), dims);
  Layout layout;
  layout.shape = layout.kept = x.shape();
  int first = x.ndim(), last = -1;  // reduced dimensions of more than one element
  for (int i = 0; i < x.ndim(); ++i) {
    if (reduced[i]) layout.kept[i] = 1;
    if (!reduced[i] || keepdim) layout.result.push_back(layout.kept[i]);
    if (reduced[i] && x.dim(i) != 1) {
      first = std::min(first, i);
      last = i;
    }
  }
  bool neighbours = true;
  for (int i = first; i <= last; ++i) neighbours = neighbours && (reduced[i] || x.dim(i) == 1);
  if (neighbours) {
    for (int i = 0; i < x.ndim(); ++i) {
      (i < first ? layout.outer : i <= last ? layout.reduced : layout.inner) *= x.dim(i);
    }
    return layout;
  }
  for (bool take : {false, true}) {
    for (int i = 0; i < x.ndim(); ++i) {
      if (reduced[i] != take) continue;
      layout.order.push_back(i);
      layout.permuted.push_back(x.dim(i));
      (take ? layout.reduced : layout.outer) *= x.dim(i);
    }
  }
  return layout;
}

Layout FloatLayout(const char* op, const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  CheckFloating(op, x);
  return MakeLayout(op, x, dims, keepdim);
}

Tensor ToBlocks(const Tensor& x, const Layout& layout) {
  const Tensor ordered = layout.order.empty() ? x.Detach() : x.Detach().Permute(layout.order);
  return ordered.Contiguous().View(layout.Blocks());
}

// Calls f(dy, dx, accumulate) to write the gradient of x, as blocks; dy is that of y.
template <class F>
void WriteGradient(const Layout& layout, Gradients& grads, const F& f) {
  const Tensor dy = grads[0].View({layout.outer, layout.inner});
  if (layout.order.empty()) {
    const auto [dx, accumulate] = grads.Open(0);
    return f(dy, dx.View(layout.Blocks()), accumulate);
  }
  const Tensor dx = Tensor::Empty(layout.permuted, dy.dtype(), dy.device());
  f(dy, dx.View(layout.Blocks()), false);
  grads.Put(0, dx.Permute(InverseOrder(layout.order)));
}

Tensor ScaledSum(const Tensor& x, const Layout& layout, double scale) {
  const Tensor blocks = ToBlocks(x, layout);
  Tensor y = Tensor::Empty(layout.result, x.dtype(), x.device());
  reduce_sum_slot(CurrentStream(x.device()), blocks, scale, y.View({layout.outer, layout.inner}),
                  false);
  RecordOp("sum", {&x}, {&y}, {}, [layout, scale](const SavedTensors&, Gradients& grads) {
    Tensor dy = grads[0];
    if (scale != 1) {
      dy = Tensor::EmptyLike(grads[0]);
      scale_slot(CurrentStream(dy.device()), grads[0], ScaleBy::kFactor, scale, dy, false);
    }
    grads.Put(0, dy.View(layout.kept).Expand(layout.shape));
  });
  return y;
}

struct ValueAndIndex {
  Tensor value, index;  // [outer, inner]
};

// For integers and bools the value is i64.
ValueAndIndex FindExtreme(Extreme extreme, const Tensor& x) {
  const Tensor blocks = IsFloating(x.dtype()) ? x : x.To(DType::kI64);
  const Shape columns{blocks.dim(0), blocks.dim(2)};
  ValueAndIndex found{Tensor::Empty(columns, blocks.dtype(), blocks.device()),
                      Tensor::Empty(columns, DType::kI64, blocks.device())};
  reduce_extreme(CurrentStream(blocks.device()), extreme, blocks, found.value, found.index);
  return found;
}

Layout ExtremeLayout(const char* op, const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  LS_CHECK(x.defined(), op, ": x is undefined");
  const Layout layout = MakeLayout(op, x, dims, keepdim);
  LS_CHECK(layout.reduced > 0, op, " over no elements, of a tensor of shape ", x.shape());
  return layout;
}

ValuesAndIndices WithIndex(const char* op, Extreme extreme, const Tensor& x,
                           const std::vector<int>& dims, bool keepdim) {
  const Layout layout = ExtremeLayout(op, x, dims, keepdim);
  const ValueAndIndex found = FindExtreme(extreme, ToBlocks(x, layout));
  Tensor y = found.value.To(x.dtype()).View(layout.result);
  RecordOp(op, {&x}, {&y}, {{found.index, "the positions of an extreme"}},
           [layout](const SavedTensors& saved, Gradients& grads) {
             WriteGradient(layout, grads, [&](const Tensor& dy, const Tensor& dx, bool accumulate) {
               reduce_extreme_backward(CurrentStream(dy.device()), dy, saved[0], dx, accumulate);
             });
           });
  return {y, found.index.View(layout.result)};
}

Tensor ExtremeOf(const char* op, Extreme extreme, const Tensor& x, const std::vector<int>& dims,
                 bool keepdim) {
  return WithIndex(op, extreme, x, dims, keepdim).values;
}

Tensor IndexOf(const char* op, Extreme extreme, const Tensor& x, const std::vector<int>& dims,
               bool keepdim) {
  const Layout layout = ExtremeLayout(op, x, dims, keepdim);
  return FindExtreme(extreme, ToBlocks(x, layout)).index.View(layout.result);
}

// ---- Folds ----

// [outer, inner], in f32 or f64.
Tensor FoldBlocks(ReduceFold fold, const Tensor& blocks, const Tensor& shift = {},
                  double scale = 1) {
  const Tensor y = Tensor::Empty({blocks.dim(0), blocks.dim(2)}, AccumulationDType(blocks.dtype()),
                                 blocks.device());
  reduce_fold(CurrentStream(blocks.device()), fold, blocks, shift, scale, y);
  return y;
}

// `wide` is the fold's result; `mean` and `saves_result` say what is kept in addition to x.
Tensor Folded(const char* op, ReduceFold fold, const Tensor& x, const Layout& layout,
              const Tensor& blocks, const Tensor& wide, bool saves_result, const Tensor& mean = {},
              double scale = 1) {
  Tensor y = wide.To(x.dtype()).View(layout.result);
  RecordOp(op, {&x}, {&y},
           {{blocks, "the input of a reduction"},
            {mean, "the mean of a variance"},
            {saves_result ? wide : Tensor(), "the result of a reduction"}},
           [fold, layout, scale](const SavedTensors& saved, Gradients& grads) {
             // As reduce_fold_backward takes them.
             const Tensor x = saved[0];
             const bool product = fold == ReduceFold::kProduct;
             const Tensor a = product ? FoldBlocks(ReduceFold::kNonzeroProduct, x) : saved[1];
             const Tensor b = product ? FoldBlocks(ReduceFold::kZeros, x) : saved[2];
             WriteGradient(layout, grads, [&](const Tensor& dy, const Tensor& dx, bool accumulate) {
               reduce_fold_backward(CurrentStream(dy.device()), fold, x, a, b, scale, dy, dx,
                                    accumulate);
             });
           });
  return y;
}

Tensor SpreadOf(const char* op, ReduceFold fold, const Tensor& x, const std::vector<int>& dims,
                int correction, bool keepdim) {
  const Layout layout = FloatLayout(op, x, dims, keepdim);
  LS_CHECK(correction >= 0 && layout.reduced > correction, op, " over ", layout.reduced,
           " elements, of a tensor of shape ", x.shape(), ", with the correction ", correction,
           ": there must be more elements than the correction, which must not be negative");
  const Tensor blocks = ToBlocks(x, layout);
  const Tensor mean =
      Tensor::Empty({layout.outer, layout.inner}, AccumulationDType(x.dtype()), x.device());
  reduce_sum_slot(CurrentStream(x.device()), blocks, 1.0 / static_cast<double>(layout.reduced),
                  mean, false);
  const double scale = 1.0 / static_cast<double>(layout.reduced - correction);
  const Tensor wide = FoldBlocks(fold, blocks, mean, scale);
  return Folded(op, fold, x, layout, blocks, wide, fold == ReduceFold::kDeviation, mean, scale);
}

Tensor BoolFold(const char* op, ReduceFold fold, const Tensor& x, const std::vector<int>& dims,
                bool keepdim) {
  x.device();  // throws if x is undefined
  const Layout layout = MakeLayout(op, x, dims, keepdim);
  // The folds take these; of all other dtypes a cast tells 0 from the rest.
  const DType dtype = x.dtype();
  const bool as_it_is = dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  const Tensor values = as_it_is ? x : x.Detach().To(DType::kBool);
  return FoldBlocks(fold, ToBlocks(values, layout)).To(DType::kBool).View(layout.result);
}

}  // namespace

Tensor Sum(const Tensor& x, const Dims& dims, bool keepdim) {
  if (x.defined() && !IsFloating(x.dtype())) {
    const Layout layout = MakeLayout("sum", x, dims, keepdim);
    const Tensor y = Tensor::Empty({layout.outer, layout.inner}, DType::kI64, x.device());
    sum_integers(CurrentStream(x.device()), ToBlocks(x, layout), y);
    return y.View(layout.result);
  }
  return ScaledSum(x, FloatLayout("sum", x, dims, keepdim), 1);
}

Tensor Mean(const Tensor& x, const Dims& dims, bool keepdim) {
  const Layout layout = FloatLayout("mean", x, dims, keepdim);
  LS_CHECK(layout.reduced > 0, "mean over no elements, of a tensor of shape ", x.shape());
  return ScaledSum(x, layout, 1.0 / static_cast<double>(layout.reduced));
}

Tensor Max(const Tensor& x, const Dims& dims, bool keepdim) {
  return ExtremeOf("max", Extreme::kMax, x, dims, keepdim);
}
Tensor Min(const Tensor& x, const Dims& dims, bool keepdim) {
  return ExtremeOf("min", Extreme::kMin, x, dims, keepdim);
}
Tensor ArgMax(const Tensor& x, const Dims& dims, bool keepdim) {
  return IndexOf("argmax", Extreme::kMax, x, dims, keepdim);
}
Tensor ArgMin(const Tensor& x, const Dims& dims, bool keepdim) {
  return IndexOf("argmin", Extreme::kMin, x, dims, keepdim);
}

ValuesAndIndices MaxWithIndex(const Tensor& x, int dim, bool keepdim) {
  return WithIndex("max", Extreme::kMax, x, {dim}, keepdim);
}
ValuesAndIndices MinWithIndex(const Tensor& x, int dim, bool keepdim) {
  return WithIndex("min", Extreme::kMin, x, {dim}, keepdim);
}

Tensor Var(const Tensor& x, const Dims& dims, int correction, bool keepdim) {
  return SpreadOf("var", ReduceFold::kVariance, x, dims, correction, keepdim);
}
Tensor Std(const Tensor& x, const Dims& dims, int correction, bool keepdim) {
  return SpreadOf("std", ReduceFold::kDeviation, x, dims, correction, keepdim);
}

Tensor Norm(const Tensor& x, double p, const Dims& dims, bool keepdim) {
  LS_CHECK(p == 1 || p == 2 || p == std::numeric_limits<double>::infinity(),
           "norm: p must be 1, 2 or infinity, got ", p);
  if (p != 1 && p != 2) {
    // The element of the largest absolute value, and then its absolute value: a 1-norm.
    CheckFloating("norm", x);
    const Tensor largest = ExtremeOf("norm", Extreme::kMaxAbs, x, dims, keepdim);
    return Norm(largest.View({largest.numel(), 1}), 1, {1}).View(largest.shape());
  }
  const Layout layout = FloatLayout("norm", x, dims, keepdim);
  const Tensor blocks = ToBlocks(x, layout);
  const ReduceFold fold = p == 1 ? ReduceFold::kAbsSum : ReduceFold::kNorm;
  return Folded("norm", fold, x, layout, blocks, FoldBlocks(fold, blocks), p == 2);
}

Tensor LogSumExp(const Tensor& x, const Dims& dims, bool keepdim) {
  const Layout layout = FloatLayout("logsumexp", x, dims, keepdim);
  const Tensor blocks = ToBlocks(x, layout);
  Tensor max;
  if (layout.reduced > 0)
    max = FindExtreme(Extreme::kMax, blocks).value.To(AccumulationDType(x.dtype()));
  return Folded("logsumexp", ReduceFold::kLogSumExp, x, layout, blocks,
                FoldBlocks(ReduceFold::kLogSumExp, blocks, max), true);
}

Tensor Prod(const Tensor& x, const Dims& dims, bool keepdim) {
  const Layout layout = FloatLayout("prod", x, dims, keepdim);
  const Tensor blocks = ToBlocks(x, layout);
  return Folded("prod", ReduceFold::kProduct, x, layout, blocks,
                FoldBlocks(ReduceFold::kProduct, blocks), false);
}

Tensor Any(const Tensor& x, const Dims& dims, bool keepdim) {
  return BoolFold("any", ReduceFold::kNonzeros, x, dims, keepdim);
}
Tensor All(const Tensor& x, const Dims& dims, bool keepdim) {
  return BoolFold("all", ReduceFold::kNoZeros, x, dims, keepdim);
}

}  // namespace lockstep::ops
