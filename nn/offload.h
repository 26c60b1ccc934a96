// Modules whose saved tensors wait for backward in host memory.
#pragma once

#include <memory>
#include <utility>

#include "core/autograd/offload.h"
#include "core/module.h"

namespace lockstep::nn {

template <class Signature>
class Offloaded;

// Offload makes it.
template <class Out, class... In>
class Offloaded<Out(In...)> : public ModuleOf<Out(In...)> {
 public:
  using Base = ModuleOf<Out(In...)>;
  Offloaded(std::shared_ptr<Base> base, std::shared_ptr<Offloader> offloader)
      : offloader_(std::move(offloader)), base_(this, "", std::move(base)) {}

 protected:
  Out Forward(In... in) override {
    if (!GradEnabled()) return base_(std::forward<In>(in)...);
    OffloadScope scope(*offloader_);
    Out out = base_(std::forward<In>(in)...);
    scope.Finish();
    return out;
  }

 private:
  std::shared_ptr<Offloader> offloader_;
  Child<Base> base_;
};

namespace internal {
template <class Out, class... In>
std::shared_ptr<ModuleOf<Out(In...)>> MakeOffloaded(std::shared_ptr<void> owner,
                                                    ModuleOf<Out(In...)>* module,
                                                    std::shared_ptr<Offloader> offloader) {
  return std::make_shared<Offloaded<Out(In...)>>(
      std::shared_ptr<ModuleOf<Out(In...)>>(std::move(owner), module), std::move(offloader));
}
}  // namespace internal

// The module, except that what its forward saves on a GPU is in host memory until backward needs it
// (core/autograd/offload.h): the same bits. Wrap each of a model's blocks, with one Offloader:
//   model.ReplaceChild("h.3", nn::Offload(block, offloader));
// Like nn::Recompute it has no name. If the module is recomputed, it moves what recomputation
// keeps: nn::Offload(nn::Recompute(block), offloader).
template <class M>
auto Offload(const std::shared_ptr<M>& module, std::shared_ptr<Offloader> offloader) {
  LS_CHECK(module != nullptr && offloader != nullptr,
           "Offload needs a module and an Offloader, not null");
  return internal::MakeOffloaded(module, module.get(), std::move(offloader));
}

}  // namespace lockstep::nn
