#include "kernels/reshape/reshape.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

class ReshapeNode : public Node {
 public:
  explicit ReshapeNode(const Shape& shape) : Node("reshape"), shape_(shape) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    sinks[0].Put(grads[0].View(shape_));
  }
  void Release() override {}

 private:
  Shape shape_;
};

class TransposeNode : public Node {
 public:
  TransposeNode(int a, int b) : Node("transpose"), a_(a), b_(b) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    sinks[0].Put(grads[0].Transpose(a_, b_));
  }
  void Release() override {}

 private:
  int a_, b_;
};

int CheckedDim(const Tensor& x, int dim) {
  const int at = dim < 0 ? dim + x.ndim() : dim;
  LS_CHECK(at >= 0 && at < x.ndim(), "transpose: there is no dimension ", dim,
           " in a tensor of shape ", x.shape());
  return at;
}

}  // namespace

Tensor Reshape(const Tensor& x, const Shape& shape) {
  LS_CHECK(x.defined(), "reshape: x is undefined");
  Tensor y = x.Detach().Contiguous().View(shape);
  if (NeedsGrad({&x})) Record(std::make_shared<ReshapeNode>(x.shape()), {&x}, {&y});
  return y;
}

Tensor Transpose(const Tensor& x, int a, int b) {
  LS_CHECK(x.defined(), "transpose: x is undefined");
  const int i = CheckedDim(x, a), j = CheckedDim(x, b);
  Tensor y = x.Detach().Transpose(i, j);
  if (NeedsGrad({&x})) Record(std::make_shared<TransposeNode>(i, j), {&x}, {&y});
  return y;
}

Tensor Contiguous(const Tensor& x) {
  LS_CHECK(x.defined(), "contiguous: x is undefined");
  return x.is_contiguous() ? x : Reshape(x, x.shape());
}

}  // namespace lockstep::ops
