// The views of a Tensor, and their gradients.
#include <algorithm>
#include <utility>

#include "core/autograd/node.h"
#include "core/broadcast.h"
#include "core/tensor.h"

namespace lockstep {
namespace {

// `y` shows each element of x once: the gradient is dy, rearranged back.
template <class F>
Tensor Rearranged(const char* name, const Tensor& x, Tensor y, F back) {
  RecordOp(name, {&x}, {&y}, {}, [back = std::move(back)](const SavedTensors&, Gradients& grads) {
    grads.Put(0, back(grads[0]));
  });
  return y;
}

// Backward of consecutive parts of a dimension, the first of which starts at `begin`. Zeroes what
// no part covers, unless another gradient is there already.
OpBackward JoinParts(int dim, int64_t begin) {
  return [dim, begin](const SavedTensors&, Gradients& grads) {
    const auto [dx, accumulate] = grads.Open(0);
    int64_t at = begin;
    for (const Tensor& dy : grads.of_outputs()) {
      const int64_t end = at + dy.dim(dim);
      GradTarget{dx.Slice(dim, at, end), accumulate}.Write(dy);
      at = end;
    }
    if (accumulate) return;
    dx.Slice(dim, 0, begin).Fill(0);
    dx.Slice(dim, at, dx.dim(dim)).Fill(0);
  };
}

void ExpandBackward(const SavedTensors&, Gradients& grads) {
  const Tensor& dy = grads[0];
  const Shape& shape = grads.spec(0).shape;
  if (dy.numel() == shape.numel()) return grads.Put(0, dy.View(shape));
  const auto [dx, accumulate] = grads.Open(0);
  SumExpanded(dy, 1, dx, accumulate);
}

int DimOf(const char* op, const Tensor& x, int dim) {
  x.device();  // throws if x is undefined
  return lockstep::DimOf(op, x.shape(), dim);
}

// `shape` with the size that belongs in place of -1.
Shape Resolved(const char* op, const Shape& shape, const Tensor& x) {
  x.device();  // throws if x is undefined
  Shape resolved = shape;
  int unknown = -1;
  int64_t known = 1;
  for (int i = 0; i < shape.ndim(); ++i) {
    if (shape[i] == -1) {
      LS_CHECK(unknown < 0, op, "(", shape, "): only one size may be -1");
      unknown = i;
    } else {
      LS_CHECK(shape[i] >= 0 && !__builtin_mul_overflow(known, shape[i], &known), op, "(", shape,
               "): sizes must not be negative, except for a single -1, and their product must fit "
               "into 63 bits");
    }
  }
  if (unknown >= 0) {
    LS_CHECK(known > 0 && x.numel() % known == 0, op, "(", shape, ") of a tensor of shape ",
             x.shape(), ": no size fits in place of -1");
    resolved[unknown] = x.numel() / known;
  }
  LS_CHECK(resolved.numel() == x.numel(), op, "(", shape, ") of a tensor of shape ", x.shape(),
           ": the numbers of elements differ");
  return resolved;
}

}  // namespace

std::vector<int> InverseOrder(const std::vector<int>& order) {
  const int n = static_cast<int>(order.size());
  std::vector<int> inverse(order.size(), -1);
  for (int i = 0; i < n; ++i) {
    const int dim = order[static_cast<size_t>(i)];
    LS_CHECK(dim >= 0 && dim < n && inverse[static_cast<size_t>(dim)] < 0,
             "InverseOrder: not an order of the dimensions 0 to ", n - 1);
    inverse[static_cast<size_t>(dim)] = i;
  }
  return inverse;
}

Tensor Tensor::WithLayout(const Shape& shape, const Shape& strides, int64_t offset) const {
  Tensor view = Detach();
  view.shape_ = shape;
  view.strides_ = strides;
  view.offset_ = offset;
  view.numel_ = shape.numel();
  return view;
}

Tensor Tensor::Detach() const {
  Tensor view = *this;
  view.autograd_ = nullptr;
  return view;
}

Tensor Tensor::View(const Shape& shape) const {
  const Shape to = Resolved("View", shape, *this);
  LS_CHECK(is_contiguous(), "View(", shape,
           ") needs a contiguous tensor: use Reshape, which copies");
  return Rearranged("view", *this, WithLayout(to, to.ContiguousStrides(), offset_),
                    [from = shape_](const Tensor& dy) { return dy.View(from); });
}

Tensor Tensor::Reshape(const Shape& shape) const {
  const Shape to = Resolved("Reshape", shape, *this);
  return Contiguous().View(to);
}

Tensor Tensor::Transpose(int a, int b) const {
  const int i = DimOf("Transpose", *this, a), j = DimOf("Transpose", *this, b);
  Shape shape = shape_, strides = strides_;
  std::swap(shape[i], shape[j]);
  std::swap(strides[i], strides[j]);
  return Rearranged("transpose", *this, WithLayout(shape, strides, offset_),
                    [i, j](const Tensor& dy) { return dy.Transpose(i, j); });
}

Tensor Tensor::Permute(const std::vector<int>& order) const {
  Shape shape, strides;
  std::vector<int> from;
  for (int dim : order) {
    const int at = DimOf("Permute", *this, dim);
    LS_CHECK(std::find(from.begin(), from.end(), at) == from.end(), "Permute: dimension ", dim,
             " is given twice");
    from.push_back(at);
    shape.push_back(shape_[at]);
    strides.push_back(strides_[at]);
  }
  LS_CHECK(shape.ndim() == ndim(), "Permute: ", order.size(), " dimensions of a tensor of shape ",
           shape_);
  return Rearranged("permute", *this, WithLayout(shape, strides, offset_),
                    [back = InverseOrder(from)](const Tensor& dy) { return dy.Permute(back); });
}

Tensor Tensor::Slice(int dim, int64_t begin, int64_t end) const {
  const int at = DimOf("Slice", *this, dim);
  const int64_t size = shape_[at];
  const int64_t from = begin < 0 ? begin + size : begin, to = end < 0 ? end + size : end;
  LS_CHECK(0 <= from && from <= to && to <= size, "Slice [", begin, ", ", end,
           ") does not lie within dimension ", dim, " of a tensor of shape ", shape_);
  Shape shape = shape_;
  shape[at] = to - from;
  const int64_t offset = offset_ + (to > from ? from * strides_[at] : 0);
  Tensor y = WithLayout(shape, strides_, offset);
  RecordOp("slice", {this}, {&y}, {}, JoinParts(at, from));
  return y;
}

std::vector<Tensor> Tensor::Split(const std::vector<int64_t>& sizes, int dim) const {
  const int at = DimOf("Split", *this, dim);
  LS_CHECK(!sizes.empty(), "Split: no sizes given");
  int64_t total = 0;
  std::vector<Tensor> parts;
  for (int64_t size : sizes) {
    LS_CHECK(size >= 0 && size <= shape_[at] - total, "Split: the sizes must not be negative and ",
             "add up to ", shape_[at], ", dimension ", dim, " of a tensor of shape ", shape_);
    parts.push_back(Detach().Slice(at, total, total + size));
    total += size;
  }
  LS_CHECK(total == shape_[at], "Split: the sizes add up to ", total, ", but dimension ", dim,
           " of a tensor of shape ", shape_, " has ", shape_[at]);
  std::vector<Tensor*> outputs;
  for (Tensor& part : parts) outputs.push_back(&part);
  const Tensor* const input = this;
  RecordOp("split", std::span(&input, 1), outputs, {}, JoinParts(at, 0));
  return parts;
}

std::vector<Tensor> Tensor::Chunk(int64_t chunks, int dim) const {
  const int at = DimOf("Chunk", *this, dim);
  LS_CHECK(chunks >= 1 && shape_[at] % chunks == 0, "Chunk: dimension ", dim,
           " of a tensor of shape ", shape_, " does not divide into ", chunks, " equal parts");
  return Split(std::vector<int64_t>(chunks, shape_[at] / chunks), at);
}

Tensor Tensor::Expand(const Shape& shape) const {
  const int lead = shape.ndim() - ndim();
  device();  // throws if this is undefined
  const char* const advice = ": aligned at the last dimension, only sizes of 1 can be repeated";
  LS_CHECK(lead >= 0, "Expand: cannot expand ", shape_, " to ", shape, advice);
  Shape strides = shape;
  for (int i = 0; i < shape.ndim(); ++i) {
    const int64_t size = i < lead ? 1 : shape_[i - lead];
    LS_CHECK(size == shape[i] || size == 1, "Expand: cannot expand ", shape_, " to ", shape,
             advice);
    strides[i] = i < lead || size != shape[i] ? 0 : strides_[i - lead];
  }
  Tensor y = WithLayout(shape, strides, offset_);
  RecordOp("expand", {this}, {&y}, {}, ExpandBackward);
  return y;
}

Tensor Tensor::Squeeze(int dim) const {
  const int at = DimOf("Squeeze", *this, dim);
  LS_CHECK(shape_[at] == 1, "Squeeze: dimension ", dim, " of a tensor of shape ", shape_,
           " is not of size 1");
  Shape shape, strides;
  for (int i = 0; i < ndim(); ++i) {
    if (i == at) continue;
    shape.push_back(shape_[i]);
    strides.push_back(strides_[i]);
  }
  return Rearranged("squeeze", *this, WithLayout(shape, strides, offset_),
                    [at](const Tensor& dy) { return dy.Unsqueeze(at); });
}

Tensor Tensor::Unsqueeze(int dim) const {
  device();  // throws if this is undefined
  const int at = dim < 0 ? dim + ndim() + 1 : dim;
  LS_CHECK(at >= 0 && at <= ndim(), "Unsqueeze: there is no dimension ", dim,
           " to insert into a tensor of shape ", shape_);
  Shape shape, strides;
  for (int i = 0; i <= ndim(); ++i) {
    if (i == at) {
      shape.push_back(1);
      strides.push_back(i < ndim() ? shape_[i] * strides_[i] : 1);
    }
    if (i < ndim()) {
      shape.push_back(shape_[i]);
      strides.push_back(strides_[i]);
    }
  }
  return Rearranged("unsqueeze", *this, WithLayout(shape, strides, offset_),
                    [at](const Tensor& dy) { return dy.Squeeze(at); });
}

}  // namespace lockstep
