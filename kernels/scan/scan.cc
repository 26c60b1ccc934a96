#include "kernels/scan/scan.h"

#include "core/autograd/node.h"

namespace lockstep::ops {
namespace {

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
  LS_CHECK(x.defined(), "cumsum: x is undefined");
  if (!IsFloating(x.dtype()) && x.dtype() != DType::kI64) return CumSum(x.To(DType::kI64), dim);
  const Shape blocks = BlocksAround(x.shape(), DimOf("cumsum", x.shape(), dim));
  Tensor y = Tensor::EmptyLike(x);
  cum_sum(CurrentStream(x.device()), x.Detach().Contiguous().View(blocks), false, y.View(blocks),
          false);
  if (NeedsGrad({&x})) Record(std::make_shared<CumSumNode>(blocks), {&x}, {&y});
  return y;
}

}  // namespace lockstep::ops
