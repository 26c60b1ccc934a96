#include "kernels/slice/slice.h"

#include "core/autograd/node.h"
#include "core/slots.h"

namespace lockstep::ops {
namespace {

int CheckedDim(const char* op, const Tensor& x, int dim) {
  LS_CHECK(x.defined(), op, ": x is undefined");
  const int at = dim < 0 ? dim + x.ndim() : dim;
  LS_CHECK(at >= 0 && at < x.ndim(), op, ": there is no dimension ", dim, " in a tensor of shape ",
           x.shape());
  return at;
}

void WritePart(const Tensor& grad, const Tensor& part, bool accumulate) {
  if (grad.numel() == 0) return;
  if (accumulate) {
    accumulate_slot(CurrentStream(part.device()), grad, part);
  } else {
    copy_slot(CurrentStream(part.device()), grad, part);
  }
}

class SliceNode : public Node {
 public:
  SliceNode(const Shape& shape, int dim, int64_t begin, int64_t end)
      : Node("slice"), shape_(shape), dim_(dim), begin_(begin), end_(end) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor& dy = grads[0];
    const GradSink::Target dx = sinks[0].Open(shape_, dy.dtype(), dy.device());
    if (!dx.accumulate) {
      dx.tensor.Slice(dim_, 0, begin_).Fill(0);
      dx.tensor.Slice(dim_, end_, shape_[dim_]).Fill(0);
    }
    WritePart(dy, dx.tensor.Slice(dim_, begin_, end_), dx.accumulate);
  }
  void Release() override {}

 private:
  Shape shape_;
  int dim_;
  int64_t begin_, end_;
};

class SplitNode : public Node {
 public:
  SplitNode(const Shape& shape, int dim) : Node("split"), shape_(shape), dim_(dim) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const GradSink::Target dx = sinks[0].Open(shape_, grads[0].dtype(), grads[0].device());
    int64_t begin = 0;
    for (const Tensor& dy : grads) {
      const int64_t end = begin + dy.dim(dim_);
      WritePart(dy, dx.tensor.Slice(dim_, begin, end), dx.accumulate);
      begin = end;
    }
  }
  void Release() override {}

 private:
  Shape shape_;
  int dim_;
};

}  // namespace

Tensor Slice(const Tensor& x, int dim, int64_t begin, int64_t end) {
  const int at = CheckedDim("slice", x, dim);
  const int64_t size = x.dim(at);
  const int64_t from = begin < 0 ? begin + size : begin, to = end < 0 ? end + size : end;
  LS_CHECK(0 <= from && from <= to && to <= size, "slice: [", begin, ", ", end,
           ") does not lie within dimension ", dim, " of a tensor of shape ", x.shape());
  Tensor y = x.Detach().Slice(at, from, to);
  if (NeedsGrad({&x})) Record(std::make_shared<SliceNode>(x.shape(), at, from, to), {&x}, {&y});
  return y;
}

std::vector<Tensor> Split(const Tensor& x, const std::vector<int64_t>& sizes, int dim) {
  const int at = CheckedDim("split", x, dim);
  LS_CHECK(!sizes.empty(), "split: no sizes given");
  int64_t total = 0;
  std::vector<Tensor> parts;
  for (int64_t size : sizes) {
    LS_CHECK(size >= 0 && size <= x.dim(at) - total, "split: the sizes must not be negative and ",
             "add up to ", x.dim(at), ", dimension ", dim, " of a tensor of shape ", x.shape());
    parts.push_back(x.Detach().Slice(at, total, total + size));
    total += size;
  }
  LS_CHECK(total == x.dim(at), "split: the sizes add up to ", total, ", but dimension ", dim,
           " of a tensor of shape ", x.shape(), " has ", x.dim(at));
  if (NeedsGrad({&x})) {
    std::vector<Tensor*> outputs;
    for (Tensor& part : parts) outputs.push_back(&part);
    const Tensor* input = &x;
    Record(std::make_shared<SplitNode>(x.shape(), at), std::span(&input, 1), outputs);
  }
  return parts;
}

std::vector<Tensor> Split(const Tensor& x, int64_t parts, int dim) {
  const int at = CheckedDim("split", x, dim);
  LS_CHECK(parts >= 1 && x.dim(at) % parts == 0, "split: dimension ", dim, " of a tensor of shape ",
           x.shape(), " does not divide into ", parts, " equal parts");
  return Split(x, std::vector<int64_t>(parts, x.dim(at) / parts), at);
}

}  // namespace lockstep::ops
