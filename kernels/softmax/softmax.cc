#include "kernels/softmax/softmax.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

Shape Rows(const Tensor& x) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.ndim(); ++i) rows *= x.dim(i);
  return {rows, x.dim(-1)};
}

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
  RecordOp(name, {&x}, {&y}, {{y, "the result of softmax"}},
           [logarithm, rows](const SavedTensors& saved, Gradients& grads) {
             const Tensor y = saved[0];
             const auto [dx, accumulate] = grads.Open(0);
             softmax_backward(CurrentStream(dx.device()), logarithm, y.View(rows),
                              grads[0].View(rows), dx.View(rows), accumulate);
           });
  return y;
}

}  // namespace

Tensor Softmax(const Tensor& x) { return Apply("softmax", false, x, -1); }
Tensor Softmax(const Tensor& x, int dim) { return Apply("softmax", false, x, dim); }
Tensor LogSoftmax(const Tensor& x) { return Apply("log_softmax", true, x, -1); }
Tensor LogSoftmax(const Tensor& x, int dim) { return Apply("log_softmax", true, x, dim); }

}  // namespace lockstep::ops
