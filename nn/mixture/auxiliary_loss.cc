#include "nn/mixture/auxiliary_loss.h"

#include "core/autograd/node.h"
#include "core/autograd/root_gradient.h"
#include "core/error.h"

namespace lockstep::nn {
namespace {

Tensor RootOfLoss() {
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
  return root;
}

}  // namespace

Tensor WithAuxiliaryLoss(const Tensor& y, const Tensor& loss) {
  LS_CHECK(loss.numel() == 1, "an auxiliary loss must be a scalar, got ", loss.Describe());
  if (!NeedsGrad({&y, &loss})) return y;
  Tensor out = y.Detach();
  RecordOp("auxiliary_loss", {&y, &loss}, {&out}, {}, [](const SavedTensors&, Gradients& grads) {
    if (grads.needs(0)) grads.Put(0, grads[0]);
    if (!grads.needs(1)) return;
    const auto& [shape, dtype, device] = grads.spec(1);
    grads.Put(1, RootOfLoss().To(device).To(dtype).Reshape(shape));
  });
  return out;
}

}  // namespace lockstep::nn
