#include "kernels/index/index.h"

#include <utility>

#include "core/autograd/node.h"
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
  RecordOp(op, {&x, &source}, {&y}, {{checked, "the index"}},
           [add, layout](const SavedTensors& saved, Gradients& grads) {
             const Tensor index = saved[0], at = layout.ToBlocks(index);
             const Tensor& dy = grads[0];
             const Stream stream = CurrentStream(dy.device());
             if (grads.needs(0) && add) grads.Put(0, dy);
             if (grads.needs(0) && !add) {
               Tensor dx = dy.Clone();
               scatter_slot(stream, at, Tensor::Zeros(at.shape(), dy.dtype(), dy.device()),
                            layout.ToBlocks(dx));
               grads.Put(0, std::move(dx));
             }
             if (!grads.needs(1)) return;
             Tensor dsource = Tensor::Empty(index.shape(), dy.dtype(), dy.device());
             if (add) {
               gather_slot(stream, layout.ToBlocks(dy), at, layout.ToBlocks(dsource));
             } else {
               scatter_source_gradient(stream, at, layout.ToBlocks(dy), layout.ToBlocks(dsource));
             }
             grads.Put(1, std::move(dsource));
           });
  return y;
}

// Slices are the rows of a table.
void IndexSelectBackward(const Layout& layout, const Tensor& index, Gradients& grads) {
  const Shape& shape = grads.spec(0).shape;
  const Tensor& dy = grads[0];
  const Stream stream = CurrentStream(dy.device());
  const int64_t v = shape[layout.dim], channels = layout.outer * layout.inner;
  if (layout.outer == 1) {
    const auto [dx, accumulate] = grads.OpenAnyDType(0);
    embedding_backward(stream, index, dy.View({index.numel(), channels}), {},
                       dx.View({v, channels}), accumulate);
    return;
  }
  const Tensor rows = layout.ToBlocks(dy).Transpose(0, 1).Contiguous();
  const Tensor dx = Tensor::Empty({v, layout.outer, layout.inner}, dy.dtype(), dy.device());
  embedding_backward(stream, index, rows.View({index.numel(), channels}), {},
                     dx.View({v, channels}), false);
  grads.Put(0, dx.Transpose(0, 1).Contiguous().View(shape));
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
  RecordOp("index_select", {&x}, {&y}, {{checked, "the index"}},
           [layout](const SavedTensors& saved, Gradients& grads) {
             IndexSelectBackward(layout, saved[0], grads);
           });
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
  RecordOp("gather", {&x}, {&y}, {{checked, "the index"}},
           [layout](const SavedTensors& saved, Gradients& grads) {
             const Tensor index = saved[0];
             const auto [dx, accumulate] = grads.Open(0);
             if (!accumulate) dx.Fill(0);
             scatter_add_slot(CurrentStream(dx.device()), layout.ToBlocks(index),
                              layout.ToBlocks(grads[0]), layout.ToBlocks(dx));
           });
  return y;
}

Tensor Scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  return Scattered("scatter", false, x, dim, index, source);
}
Tensor ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  return Scattered("scatter_add", true, x, dim, index, source);
}

}  // namespace lockstep::ops
