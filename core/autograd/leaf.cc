#include "core/autograd/leaf.h"

#include "core/error.h"

namespace lockstep {

void Leaf::SetDestination(const Tensor& destination) {
  LS_CHECK(destination.defined() && destination.shape() == shape_ &&
               IsFloating(destination.dtype()) && destination.is_contiguous(),
           "the gradient of '", name_, "' needs a contiguous floating destination of shape ",
           shape_, ", got ", destination.Describe());
  grad_ = destination.Detach();
  fixed_ = true;
  fresh_ = true;
}

void Leaf::ZeroGrad() {
  fresh_ = true;
  if (!fixed_) grad_ = Tensor();
}

void Leaf::SetDType(DType dtype) {
  dtype_ = dtype;
  asked_ = false;
  ZeroGrad();
}

void Leaf::SetGrad(const Tensor& grad) {
  LS_CHECK(grad.defined() && grad.shape() == shape_, "gradient ", grad.Describe(), " for '", name_,
           "' of shape ", shape_);
  // The user may write to the tensor, and optimizers write to gradients.
  if (fixed_) {
    grad_.CopyFrom(grad.Detach());
  } else {
    grad_ = grad.Detach().Clone();
  }
  fresh_ = false;
}

HookHandle Leaf::AddHook(GradHook hook) {
  LS_CHECK(no_hooks_.empty(), "'", name_, "' can have no hook: ", no_hooks_);
  return AddGradHook(hooks_, std::move(hook));
}

void Leaf::ShareGrad(const Tensor& grad) {
  LS_CHECK(grad.defined() && grad.shape() == shape_, "gradient ", grad.Describe(), " for '", name_,
           "' of shape ", shape_);
  grad_ = grad.Detach();
  fresh_ = false;
}

}  // namespace lockstep
