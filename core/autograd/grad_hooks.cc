#include "core/autograd/grad_hooks.h"

#include "core/tensor.h"

namespace lockstep {
namespace {

thread_local int refused = 0;

}  // namespace

HookHandle AddGradHook(std::shared_ptr<GradHooks>& hooks, GradHook hook) {
  if (!hooks) hooks = std::make_shared<GradHooks>();
  hooks->push_back(std::make_shared<const GradHook>(std::move(hook)));
  return {hooks, hooks->back()};
}

Tensor RunGradHooks(const GradHooks& hooks, Tensor grad, const std::string& whose) {
  const GradHooks now = hooks;  // they may be removed meanwhile
  for (const auto& hook : now) {
    if (refused > 0) {
      throw Error(StrCat("a hook of ", whose,
                         " cannot be part of a CUDA graph: it would run once, "
                         "when the graph is captured"));
    }
    const uint64_t version = grad.storage().version();
    const Tensor by = (*hook)(grad);
    LS_CHECK(grad.storage().version() == version, "a hook wrote to the gradient of ", whose,
             ", whose memory others may share: return a new tensor instead");
    if (!by.defined()) continue;
    LS_CHECK(
        by.shape() == grad.shape() && by.dtype() == grad.dtype() && by.device() == grad.device(),
        "a hook of ", whose, " returned ", by.Describe(), " in the place of its gradient, ",
        grad.Describe(), ": they must be equal in shape, dtype and device");
    grad = by.Detach().Contiguous();
  }
  return grad;
}

RefuseGradHooks::RefuseGradHooks() { ++refused; }
RefuseGradHooks::~RefuseGradHooks() { --refused; }

}  // namespace lockstep
