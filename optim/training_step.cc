#include "optim/training_step.h"

#include <algorithm>
#include <atomic>

#include "core/autograd/leaf.h"
#include "kernels/loss_scale/loss_scale.h"
#include "optim/optimizer.h"

namespace lockstep::optim {
namespace {

uint64_t NextId() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

TrainingStep::TrainingStep(const StepState& state, const Optimizer& optimizer)
    : state_(state), scope_(state), optimizer_(optimizer), id_(NextId()) {
  state_.SetWatch(this);
}

TrainingStep::~TrainingStep() {
  if (On(state_) == this) state_.SetWatch(nullptr);
}

const TrainingStep* TrainingStep::On(const StepState& state) {
  return dynamic_cast<const TrainingStep*>(state.watch());
}

Tensor TrainingStep::Root(double gradient, DType dtype) const {
  return ops::ScaleRoot(Tensor::Full({}, gradient, dtype, state_.device()), state_);
}

void TrainingStep::CheckBackward(std::span<const std::shared_ptr<Leaf>> leaves) const {
  for (const auto& leaf : leaves) {
    LS_CHECK(!leaf->of_parameter() || leaf->gradient_users() > 0, "Backward: the parameter '",
             leaf->name(),
             "' gets a gradient, but no optimizer updates it, so it would not be trained. If its "
             "module is part of the model, make the optimizer after ReplaceChild, of the "
             "Parameters() of the whole model, whose tree has its members of the kind\n"
             "  Child<nn::Linear> fc{this, \"fc\", 2, 3};\n"
             "Otherwise freeze the parameter, before the forward:\n"
             "  parameter->SetTrainable(false);");
  }
  const bool clipped = phase_ == Phase::kClipped;
  const bool unscaled = state_.loss_scaling() && !state_.root_scaled();
  if (!clipped && !unscaled) return;
  for (const auto& p : optimizer_.parameters()) {
    const auto is_p = [&](const auto& leaf) { return leaf.get() == &p->leaf(); };
    if (std::ranges::none_of(leaves, is_p)) continue;
    LS_CHECK(!clipped, "Backward after ClipGradNorm: what it adds to the gradient of '", p->name(),
             "' would not be clipped. Call ClipGradNorm after the last Backward of the step");
    throw ArgumentError(
        StrCat("Backward without the loss scale, by which the gradient of '", p->name(),
               "' would be divided all the same: write\n"
               "  Backward(loss, training.Root());\n"
               "where `training` is what BeginStep returned, or training.Root(1.0 / n) where the "
               "gradient of the loss is 1 / n"));
  }
}

}  // namespace lockstep::optim
