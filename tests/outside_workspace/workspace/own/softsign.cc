#include "own/softsign.h"

#include <memory>

#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"

namespace own {
namespace {

using namespace lockstep;

class SoftsignNode : public Node {
 public:
  explicit SoftsignNode(const Tensor& x) : Node("softsign"), x_(x, "the input of softsign") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>&,
                std::span<GradSink> sinks) override {
    const Tensor x = x_.Unpack();
    const GradSink::Target dx = sinks[0].Open(x);
    softsign_backward(CurrentStream(x.device()), x, grads[0], dx.tensor, dx.accumulate);
  }
  void Release() override { x_.Reset(); }

 private:
  SavedTensor x_;
};

}  // namespace

Tensor Softsign(const Tensor& x) {
  LS_CHECK(x.defined() && IsFloating(x.dtype()), "softsign: x must be a floating tensor, got ",
           x.Describe());
  const Tensor input = x.Detach().Contiguous();
  Tensor y = Tensor::EmptyLike(input);
  softsign_forward(CurrentStream(x.device()), input, y);
  if (NeedsGrad({&x})) Record(std::make_shared<SoftsignNode>(input), {&x}, {&y});
  return y;
}

}  // namespace own
