#include "kernels/residual/residual.h"

#include "core/autograd/node.h"
#include "kernels/checks.h"

namespace lockstep::ops {
namespace {

class ResidualNode : public Node {
 public:
  ResidualNode() : Node("residual") {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    for (size_t i = 0; i < sinks.size(); ++i) {
      if (needs[i]) sinks[i].Put(grads[0]);
    }
  }
  void Release() override {}
};

}  // namespace

Tensor Residual(const Tensor& x, const Tensor& branch) {
  CheckFloating("residual", x);
  LS_CHECK(branch.defined() && branch.shape() == x.shape() && branch.dtype() == x.dtype() &&
               branch.device() == x.device(),
           "residual: the branch must match x (", x.Describe(), "), got ", branch.Describe());
  const Tensor a = x.Detach().Contiguous(), b = branch.Detach().Contiguous();
  Tensor y = Tensor::EmptyLike(a);
  residual_forward(CurrentStream(x.device()), a, b, y);
  if (NeedsGrad({&x, &branch})) Record(std::make_shared<ResidualNode>(), {&x, &branch}, {&y});
  return y;
}

}  // namespace lockstep::ops
