#include "core/autograd/root_gradient.h"

#include <utility>

#include "core/error.h"

namespace lockstep {
namespace {

thread_local const Tensor* root_gradient = nullptr;

}  // namespace

Tensor RootGradient() { return root_gradient != nullptr ? *root_gradient : Tensor(); }

RootGradientScope::RootGradientScope(const Tensor& gradient)
    : gradient_(gradient), previous_(std::exchange(root_gradient, &gradient_)) {
  LS_CHECK(gradient.defined() && gradient.numel() == 1,
           "the root gradient of a loss has one element, got ",
           gradient.defined() ? gradient.Describe() : "an undefined tensor");
}
RootGradientScope::~RootGradientScope() { root_gradient = previous_; }

}  // namespace lockstep
