#include "kernels/index/index.h"

#include <utility>

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
#include "kernels/checks.h"
#include "kernels/embedding/embedding.h"

namespace lockstep::ops {
namespace {

// How the kernels see x, the index and y: [outer, size of the dimension, inner].
struct Layout {
  int dim;
  int64_t outer = 1, inner = 1;

  Layout(const Shape& shape, int indexed) : dim(indexed) {
    const Shape blocks = BlocksAround(shape, dim);
    outer = blocks[0];
    inner = blocks[2];
  }
  Shape Blocks(int64_t size) const { return {outer, size, inner}; }
  // For a contiguous tensor.
  Tensor ToBlocks(const Tensor& x) const { return x.View(Blocks(x.dim(dim))); }
};

int DimOf(const char* op, const Tensor& x, int dim) {
  LS_CHECK(x.defined(), op, ": x is undefined");
  return lockstep::DimOf(op, x.shape(), dim);
}

// Throws for the first element outside of [0, size), if the host can see it.
void CheckRange(const char* op, const Tensor& index, int64_t size) {
  if (!index.device().is_cpu()) return;
  const int64_t* id = index.data<int64_t>();
  for (int64_t i = 0; i < index.numel(); ++i) {
    if (id[i] >= 0 && id[i] < size) [[likely]]
      continue;
    Shape place = index.shape();
    int64_t rest = i;
    for (int d = index.ndim() - 1; d >= 0; --d) {
      place[d] = rest % index.dim(d);
      rest /= index.dim(d);
    }
    throw ArgumentError(StrCat(op, ": the index ", id[i], " at ", place, " is not in [0, ", size,
                               "), the dimension of x that it picks from"));
  }
}

// The index as the kernels want it: i64, contiguous.
Tensor Checked(const char* op, const Tensor& x, int dim, const Tensor& index) {
  LS_CHECK(index.defined() && (index.dtype() == DType::kI32 || index.dtype() == DType::kI64) &&
               index.device() == x.device(),
           op, ": the index must be i32 or i64, on ", x.device(), " as x is, got ",
           index.Describe());
  const Tensor checked = index.Detach().To(DType::kI64).Contiguous();
  CheckRange(op, checked, x.dim(dim));
  return checked;
}

// For an index that has the shape of x, except in one dimension.
Tensor CheckedLikeX(const char* op, const Tensor& x, int dim, const Tensor& index) {
  bool fits = index.defined() && index.ndim() == x.ndim();
  for (int i = 0; fits && i < x.ndim(); ++i) fits = i == dim || index.dim(i) == x.dim(i);
  LS_CHECK(fits, op, ": the index must have the shape of x, ", x.shape(), ", except in dimension ",
           dim, ", got ", index.Describe(), ": expand it, or slice x");
  return Checked(op, x, dim, index);
}

// Checks that the kernels can index this many elements, before the index is copied.
void CheckSorted(const char* op, const char* why, const Tensor& x, int dim, const Tensor& index) {
  if (index.defined() && index.numel() > 0) {
    CheckSorts(op, why, x.device(), index.numel(), x.dim(dim));
  }
}

class IndexSelectNode : public Node {
 public:
  IndexSelectNode(const Tensor& index, const Shape& shape, const Layout& layout)
      : Node("index_select"), index_(index, "the index"), shape_(shape), layout_(layout) {}

  // Slices are the rows of a table.
  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor index = index_.Unpack();
    const Tensor dy = grads[0].Contiguous();
    const Stream stream = CurrentStream(dy.device());
    const int64_t v = shape_[layout_.dim], channels = layout_.outer * layout_.inner;
    if (layout_.outer == 1) {
      const GradSink::Target dx = sinks[0].OpenAnyDType(shape_, dy.dtype(), dy.device());
      embedding_backward(stream, index, dy.View({index.numel(), channels}), {},
                         dx.tensor.View({v, channels}), dx.accumulate);
      return;
    }
    const Tensor rows = layout_.ToBlocks(dy).Transpose(0, 1).Contiguous();
    const Tensor dx = Tensor::Empty({v, layout_.outer, layout_.inner}, dy.dtype(), dy.device());
    embedding_backward(stream, index, rows.View({index.numel(), channels}), {},
                       dx.View({v, channels}), false);
    sinks[0].Put(dx.Transpose(0, 1).Contiguous().View(shape_));
  }
  void Release() override { index_.Reset(); }

 private:
  SavedTensor index_;
  Shape shape_;
  Layout layout_;
};

class GatherNode : public Node {
 public:
  GatherNode(const Tensor& index, const Shape& shape, const Layout& layout)
      : Node("gather"), index_(index, "the index"), shape_(shape), layout_(layout) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor dy = grads[0].Contiguous();
    const GradSink::Target dx = sinks[0].Open(shape_, dy.dtype(), dy.device());
    if (!dx.accumulate) dx.tensor.Fill(0);
    scatter_add_slot(CurrentStream(dy.device()), layout_.ToBlocks(index_.Unpack()),
                     layout_.ToBlocks(dy), layout_.ToBlocks(dx.tensor));
  }
  void Release() override { index_.Reset(); }

 private:
  SavedTensor index_;
  Shape shape_;
  Layout layout_;
};

// The node of Scatter and ScatterAdd.
class ScatterNode : public Node {
 public:
  ScatterNode(const char* name, bool add, const Tensor& index, const Layout& layout)
      : Node(name), add_(add), index_(index, "the index"), layout_(layout) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    const Tensor index = index_.Unpack();
    const Tensor at = layout_.ToBlocks(index), dy = grads[0].Contiguous();
    const Stream stream = CurrentStream(dy.device());
    if (needs[0] && add_) sinks[0].Put(dy);
    if (needs[0] && !add_) {
      const Tensor dx = dy.Clone();
      scatter_slot(stream, at, Tensor::Zeros(at.shape(), dy.dtype(), dy.device()),
                   layout_.ToBlocks(dx));
      sinks[0].Put(dx);
    }
    if (needs[1]) {
      const Tensor dsource = Tensor::Empty(index.shape(), dy.dtype(), dy.device());
      if (add_) {
        gather_slot(stream, layout_.ToBlocks(dy), at, layout_.ToBlocks(dsource));
      } else {
        scatter_source_gradient(stream, at, layout_.ToBlocks(dy), layout_.ToBlocks(dsource));
      }
      sinks[1].Put(dsource);
    }
  }
  void Release() override { index_.Reset(); }

 private:
  bool add_;
  SavedTensor index_;
  Layout layout_;
};

Tensor Scattered(const char* op, bool add, const Tensor& x, int dim, const Tensor& index,
                 const Tensor& source) {
  const Layout layout(x.shape(), DimOf(op, x, dim));
  if (add) CheckFloating(op, x);
  if (index.defined() && index.ndim() > layout.dim && index.dim(layout.dim) > 1) {
    CheckSorted(op, "it sorts the index", x, layout.dim, index);
  }
  const Tensor checked = CheckedLikeX(op, x, layout.dim, index);
  LS_CHECK(source.defined() && source.shape() == index.shape() && source.dtype() == x.dtype() &&
               source.device() == x.device(),
           op, ": the source must have the shape of the index, ", index.shape(),
           ", and the dtype and device of x, ", x.Describe(), ", got ", source.Describe(),
           ": expand or cast it");
  Tensor y = Tensor::EmptyLike(x);
  y.CopyFrom(x.Detach());
  const auto& slot = add ? scatter_add_slot : scatter_slot;
  slot(CurrentStream(x.device()), layout.ToBlocks(checked),
       layout.ToBlocks(source.Detach().Contiguous()), layout.ToBlocks(y));
  if (NeedsGrad({&x, &source})) {
    Record(std::make_shared<ScatterNode>(op, add, checked, layout), {&x, &source}, {&y});
  }
  return y;
}

}  // namespace

Tensor IndexSelect(const Tensor& x, int dim, const Tensor& index) {
  const Layout layout(x.shape(), DimOf("index_select", x, dim));
  LS_CHECK(index.defined() && index.ndim() == 1,
           "index_select: the index must have one dimension, got ", index.Describe(),
           "; Gather takes one for each element");
  if (NeedsGrad({&x})) {
    CheckSorted("index_select", "its gradient sorts the index", x, layout.dim, index);
  }
  const Tensor checked = Checked("index_select", x, layout.dim, index);
  Shape shape = x.shape();
  shape[layout.dim] = index.numel();
  Tensor y = Tensor::Empty(shape, x.dtype(), x.device());
  gather_slot(CurrentStream(x.device()), layout.ToBlocks(x.Detach().Contiguous()),
              checked.View({1, index.numel(), 1}).Expand(layout.Blocks(index.numel())),
              layout.ToBlocks(y));
  if (NeedsGrad({&x})) {
    Record(std::make_shared<IndexSelectNode>(checked, x.shape(), layout), {&x}, {&y});
  }
  return y;
}

Tensor Gather(const Tensor& x, int dim, const Tensor& index) {
  const Layout layout(x.shape(), DimOf("gather", x, dim));
  if (NeedsGrad({&x}) && index.defined() && index.ndim() > layout.dim &&
      index.dim(layout.dim) > 1) {
    CheckSorted("gather", "its gradient sorts the index", x, layout.dim, index);
  }
  const Tensor checked = CheckedLikeX("gather", x, layout.dim, index);
  Tensor y = Tensor::Empty(index.shape(), x.dtype(), x.device());
  gather_slot(CurrentStream(x.device()), layout.ToBlocks(x.Detach().Contiguous()),
              layout.ToBlocks(checked), layout.ToBlocks(y));
  if (NeedsGrad({&x})) {
    Record(std::make_shared<GatherNode>(checked, x.shape(), layout), {&x}, {&y});
  }
  return y;
}

Tensor Scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  return Scattered("scatter", false, x, dim, index, source);
}
Tensor ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  return Scattered("scatter_add", true, x, dim, index, source);
}

}  // namespace lockstep::ops
