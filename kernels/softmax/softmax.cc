#include "kernels/softmax/softmax.h"

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"

namespace lockstep::ops {
namespace {

Shape Rows(const Tensor& x) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.ndim(); ++i) rows *= x.dim(i);
  return {rows, x.dim(-1)};
}

class SoftmaxNode : public Node {
 public:
  SoftmaxNode(const char* name, bool logarithm, const Tensor& y)
      : Node(name), logarithm_(logarithm), y_(y, "the result of softmax") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor y = y_.Unpack();
    const Shape rows = Rows(y);
    const GradSink::Target dx = sinks[0].Open(y);
    softmax_backward(CurrentStream(y.device()), logarithm_, y.View(rows), grads[0].View(rows),
                     dx.tensor.View(rows), dx.accumulate);
  }
  void Release() override { y_.Reset(); }

 private:
  bool logarithm_;
  SavedTensor y_;
};

Tensor Apply(const char* name, bool logarithm, const Tensor& x, int dim) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()) && x.ndim() >= 1, name,
           ": x must be a floating tensor with at least one dimension, got ", x.Describe());
  const int at = DimOf(name, x.shape(), dim);
  if (at != x.ndim() - 1) {
    return Apply(name, logarithm, x.Transpose(at, -1), -1).Transpose(at, -1).Contiguous();
  }
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Tensor::EmptyLike(input);
  const Shape rows = Rows(input);
  softmax_forward(CurrentStream(x.device()), logarithm, input.View(rows), y.View(rows));
  if (NeedsGrad({&x})) Record(std::make_shared<SoftmaxNode>(name, logarithm, y), {&x}, {&y});
  return y;
}

}  // namespace

Tensor Softmax(const Tensor& x) { return Apply("softmax", false, x, -1); }
Tensor Softmax(const Tensor& x, int dim) { return Apply("softmax", false, x, dim); }
Tensor LogSoftmax(const Tensor& x) { return Apply("log_softmax", true, x, -1); }
Tensor LogSoftmax(const Tensor& x, int dim) { return Apply("log_softmax", true, x, dim); }

}  // namespace lockstep::ops
