#include "kernels/scan/scan.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

Shape Blocks(const Shape& shape, int dim) {
  Shape blocks{1, shape[dim], 1};
  for (int i = 0; i < dim; ++i) blocks[0] *= shape[i];
  for (int i = dim + 1; i < shape.ndim(); ++i) blocks[2] *= shape[i];
  return blocks;
}

class CumSumNode : public Node {
 public:
  explicit CumSumNode(const Shape& blocks) : Node("cumsum"), blocks_(blocks) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor dy = grads[0].Contiguous();
    const GradSink::Target dx = sinks[0].Open(dy);
    cum_sum(CurrentStream(dy.device()), dy.View(blocks_), true, dx.tensor.View(blocks_),
            dx.accumulate);
  }
  void Release() override {}

 private:
  Shape blocks_;
};

}  // namespace

Tensor CumSum(const Tensor& x, int dim) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()), "cumsum: x must be a floating tensor, got ",
           x.Describe(), ": cast it with To()");
  const int at = dim < 0 ? dim + x.ndim() : dim;
  LS_CHECK(at >= 0 && at < x.ndim(), "cumsum: there is no dimension ", dim,
           " in a tensor of shape ", x.shape());
  const Shape blocks = Blocks(x.shape(), at);
  Tensor y = Tensor::EmptyLike(x);
  cum_sum(CurrentStream(x.device()), x.Detach().Contiguous().View(blocks), false, y.View(blocks),
          false);
  if (NeedsGrad({&x})) Record(std::make_shared<CumSumNode>(blocks), {&x}, {&y});
  return y;
}

}  // namespace lockstep::ops
