#include "nn/mixture/auxiliary_loss.h"

#include "core/autograd/node.h"
#include "core/autograd/root_gradient.h"
#include "core/error.h"

namespace lockstep::nn {
namespace {

class AuxiliaryLossNode : public Node {
 public:
  explicit AuxiliaryLossNode(const Tensor& loss)
      : Node("auxiliary_loss"),
        shape_(loss.shape()),
        dtype_(loss.dtype()),
        device_(loss.device()) {}

  void Backward(std::span<const Tensor> grads, const std::vector<bool>& needs,
                std::span<GradSink> sinks) override {
    if (needs[0]) sinks[0].Put(grads[0]);
    if (!needs[1]) return;
    const Tensor root = RootGradient();
    if (!root.defined()) {
      throw Error(
          "the backward of a model with an auxiliary loss, such as that of a router, must be given "
          "the root gradient of a scalar loss, with which the auxiliary loss begins too. Both are "
          "sums over tokens, so make the loss a sum, and divide at its root:\n"
          "  Backward(loss, Tensor::Full({}, 1.0 / tokens, DType::kF32, device));\n"
          "Where a backward begins elsewhere, as in a stage of a pipeline, declare it:\n"
          "  const RootGradientScope scope(root_gradient);");
    }
    sinks[1].Put(root.To(device_).To(dtype_).Reshape(shape_));
  }
  void Release() override {}

 private:
  Shape shape_;
  DType dtype_;
  Device device_;
};

}  // namespace

Tensor WithAuxiliaryLoss(const Tensor& y, const Tensor& loss) {
  LS_CHECK(loss.numel() == 1, "an auxiliary loss must be a scalar, got ", loss.Describe());
  if (!NeedsGrad({&y, &loss})) return y;
  Tensor out = y.Detach();
  Record(std::make_shared<AuxiliaryLossNode>(loss), {&y, &loss}, {&out});
  return out;
}

}  // namespace lockstep::nn
