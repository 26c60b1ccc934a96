// The views of a Tensor, and their gradients.
#include <algorithm>
#include <functional>
#include <utility>

#include "core/autograd/node.h"
#include "core/broadcast.h"
#include "core/tensor.h"

namespace lockstep {
namespace {

// The node of a view that shows each element once: applies the inverse view to dy.
class RearrangementNode : public Node {
 public:
  using Inverse = std::function<Tensor(const Tensor& dy)>;
  RearrangementNode(const char* name, Inverse inverse) : Node(name), inverse_(std::move(inverse)) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    sinks[0].Put(inverse_(grads[0]));
  }
  void Release() override {}

 private:
  Inverse inverse_;
};

// The node of consecutive parts of a dimension; the first of them starts at `begin`. Zeroes what no
// part covers, unless another gradient is there already.
class PartsNode : public Node {
 public:
  PartsNode(const char* name, const Shape& shape, int dim, int64_t begin)
      : Node(name), shape_(shape), dim_(dim), begin_(begin) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const auto [dx, accumulate] = sinks[0].Open(shape_, grads[0].dtype(), grads[0].device());
    int64_t at = begin_;
    for (const Tensor& dy : grads) {
      const int64_t end = at + dy.dim(dim_);
      GradSink::Target{dx.Slice(dim_, at, end), accumulate}.Write(dy);
      at = end;
    }
    if (accumulate) return;
    dx.Slice(dim_, 0, begin_).Fill(0);
    dx.Slice(dim_, at, shape_[dim_]).Fill(0);
  }
  void Release() override {}

 private:
  Shape shape_;
  int dim_;
  int64_t begin_;
};

class ExpandNode : public Node {
 public:
  explicit ExpandNode(const Shape& shape) : Node("expand"), shape_(shape) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    if (dy.numel() == shape_.numel()) {
      sinks[0].Put(dy.View(shape_));
      return;
    }
    const GradSink::Target dx = sinks[0].Open(shape_, dy.dtype(), dy.device());
    SumExpanded(dy, 1, dx.tensor, dx.accumulate);
  }
  void Release() override {}

 private:
  Shape shape_;
};

template <class NodeType, class... Args>
Tensor Recorded(const Tensor& x, Tensor y, Args&&... args) {
  if (NeedsGrad({&x})) Record(std::make_shared<NodeType>(std::forward<Args>(args)...), {&x}, {&y});
  return y;
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
  return Recorded<RearrangementNode>(*this, WithLayout(to, to.ContiguousStrides(), offset_), "view",
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
  return Recorded<RearrangementNode>(*this, WithLayout(shape, strides, offset_), "transpose",
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
  return Recorded<RearrangementNode>(
      *this, WithLayout(shape, strides, offset_), "permute",
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
  return Recorded<PartsNode>(*this, WithLayout(shape, strides_, offset), "slice", shape_, at, from);
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
  if (NeedsGrad({this})) {
    std::vector<Tensor*> outputs;
    for (Tensor& part : parts) outputs.push_back(&part);
    const Tensor* input = this;
    Record(std::make_shared<PartsNode>("split", shape_, at, 0), std::span(&input, 1), outputs);
  }
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
  return Recorded<ExpandNode>(*this, WithLayout(shape, strides, offset_), shape_);
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
  return Recorded<RearrangementNode>(*this, WithLayout(shape, strides, offset_), "squeeze",
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
  return Recorded<RearrangementNode>(*this, WithLayout(shape, strides, offset_), "unsqueeze",
                                     [at](const Tensor& dy) { return dy.Squeeze(at); });
}

}  // namespace lockstep
