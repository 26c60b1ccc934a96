#include "kernels/reduce/reduce.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
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
    const int at = d < 0 ? d + shape.ndim() : d;
    LS_CHECK(at >= 0 && at < shape.ndim(), op, ": there is no dimension ", d,
             " in a tensor of shape ", shape);
    LS_CHECK(!reduced[at], op, ": dimension ", d, " is given twice");
    reduced[at] = true;
  }
  return reduced;
}

Layout MakeLayout(const char* op, const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()), op, ": x must be a floating tensor, got ",
           x.Describe());
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

Tensor ToBlocks(const Tensor& x, const Layout& layout) {
  const Tensor ordered = layout.order.empty() ? x.Detach() : x.Detach().Permute(layout.order);
  return ordered.Contiguous().View(layout.Blocks());
}

class SumNode : public Node {
 public:
  SumNode(const Layout& layout, double scale) : Node("sum"), layout_(layout), scale_(scale) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    Tensor dy = grads[0];
    if (scale_ != 1) {
      dy = Tensor::EmptyLike(grads[0]);
      scale_slot(CurrentStream(dy.device()), grads[0], ScaleBy::kFactor, scale_, dy, false);
    }
    sinks[0].Put(dy.View(layout_.kept).Expand(layout_.shape));
  }
  void Release() override {}

 private:
  Layout layout_;
  double scale_;
};

class MaxNode : public Node {
 public:
  MaxNode(const Layout& layout, const Tensor& index)
      : Node("max"), layout_(layout), index_(index, "the positions of max") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    const Stream stream = CurrentStream(dy.device());
    const Tensor blocks = dy.View({layout_.outer, layout_.inner});
    if (layout_.order.empty()) {
      const GradSink::Target dx = sinks[0].Open(layout_.shape, dy.dtype(), dy.device());
      reduce_max_backward(stream, blocks, index_.Unpack(), dx.tensor.View(layout_.Blocks()),
                          dx.accumulate);
      return;
    }
    const Tensor dx = Tensor::Empty(layout_.permuted, dy.dtype(), dy.device());
    reduce_max_backward(stream, blocks, index_.Unpack(), dx.View(layout_.Blocks()), false);
    sinks[0].Put(dx.Permute(InverseOrder(layout_.order)));
  }
  void Release() override { index_.Reset(); }

 private:
  Layout layout_;
  SavedTensor index_;
};

Tensor ScaledSum(const Tensor& x, const Layout& layout, double scale) {
  const Tensor blocks = ToBlocks(x, layout);
  Tensor y = Tensor::Empty(layout.result, x.dtype(), x.device());
  reduce_sum_slot(CurrentStream(x.device()), blocks, scale, y.View({layout.outer, layout.inner}),
                  false);
  if (NeedsGrad({&x})) Record(std::make_shared<SumNode>(layout, scale), {&x}, {&y});
  return y;
}

}  // namespace

Tensor Sum(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  return ScaledSum(x, MakeLayout("sum", x, dims, keepdim), 1);
}

Tensor Mean(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  const Layout layout = MakeLayout("mean", x, dims, keepdim);
  LS_CHECK(layout.reduced > 0, "mean over no elements, of a tensor of shape ", x.shape());
  return ScaledSum(x, layout, 1.0 / static_cast<double>(layout.reduced));
}

Tensor Max(const Tensor& x, const std::vector<int>& dims, bool keepdim) {
  const Layout layout = MakeLayout("max", x, dims, keepdim);
  LS_CHECK(layout.reduced > 0, "max over no elements, of a tensor of shape ", x.shape());
  const Tensor blocks = ToBlocks(x, layout);
  Tensor y = Tensor::Empty(layout.result, x.dtype(), x.device());
  const Tensor index = Tensor::Empty({layout.outer, layout.inner}, DType::kI64, x.device());
  reduce_max(CurrentStream(x.device()), blocks, y.View({layout.outer, layout.inner}), index);
  if (NeedsGrad({&x})) Record(std::make_shared<MaxNode>(layout, index), {&x}, {&y});
  return y;
}

}  // namespace lockstep::ops
