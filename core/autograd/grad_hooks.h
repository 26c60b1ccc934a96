// Hooks of gradients: Tensor::RegisterHook.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

class Tensor;

// Called with a gradient; returns what takes its place, or an undefined tensor.
using GradHook = std::function<Tensor(const Tensor& grad)>;
using GradHooks = std::vector<std::shared_ptr<const GradHook>>;

// For taking a hook away again. Copies are the same hook; forgetting the handle leaves it there.
class HookHandle {
 public:
  HookHandle() = default;  // of no hook
  HookHandle(std::weak_ptr<GradHooks> hooks, std::weak_ptr<const GradHook> hook)
      : hooks_(std::move(hooks)), hook_(std::move(hook)) {}
  void Remove() {
    if (const auto hooks = hooks_.lock()) std::erase(*hooks, hook_.lock());
    hooks_.reset();
  }

 private:
  std::weak_ptr<GradHooks> hooks_;
  std::weak_ptr<const GradHook> hook_;
};

// Appends to `hooks`, which may be null.
HookHandle AddGradHook(std::shared_ptr<GradHooks>& hooks, GradHook hook);

// The gradient after the hooks. Throws ArgumentError where one writes to it or returns what does
// not fit, and as RefuseGradHooks says. `whose` names the gradient's tensor.
Tensor RunGradHooks(const GradHooks& hooks, Tensor grad, const std::string& whose);

// While one lives, a hook that should run on this thread throws Error instead: in a CUDA graph it
// would run once, when the graph is captured.
class RefuseGradHooks {
 public:
  RefuseGradHooks();
  ~RefuseGradHooks();
  RefuseGradHooks(const RefuseGradHooks&) = delete;
  RefuseGradHooks& operator=(const RefuseGradHooks&) = delete;
};

}  // namespace lockstep
