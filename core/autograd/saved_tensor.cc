#include "core/autograd/saved_tensor.h"

#include <utility>

#include "core/autograd/engine.h"
#include "core/error.h"

namespace lockstep {
namespace {

thread_local SavedTensorHooks* saved_tensor_hooks = nullptr;

}  // namespace

SavedTensor::SavedTensor(const Tensor& tensor, const char* what) : what_(what) {
  if (!tensor.defined()) return;
  if (saved_tensor_hooks != nullptr) {
    SavedTensorHooks* hooks = saved_tensor_hooks;
    const SavedTensorHooks::Pause pause(*hooks);
    packed_ = hooks->pack_(tensor.Detach(), what);
    unpack_ = hooks->unpack_;
    return;
  }
  tensor_ = tensor.Detach();
  version_ = tensor_.storage().version();
}

Tensor SavedTensor::Unpack() const {
  if (unpack_ != nullptr) return (*unpack_)(packed_);
  if (tensor_.defined() && tensor_.storage().version() != version_) {
    throw Error(StrCat("backward needs ", what_, " (", tensor_.Describe(),
                       ") as it was in forward, but it has been overwritten since (version ",
                       tensor_.storage().version(), ", saved ", version_,
                       "): run backward before writing to it, or write to a Clone()"));
  }
  return tensor_;
}

Tensor SavedTensors::Take(size_t i) {
  Tensor tensor = (*this)[i];
  if (!GraphIsRetained()) tensors_[i]->Reset();
  return tensor;
}

SavedTensorHooks::SavedTensorHooks(Pack pack, Unpack unpack)
    : pack_(std::move(pack)),
      unpack_(std::make_shared<const Unpack>(std::move(unpack))),
      previous_(saved_tensor_hooks) {
  saved_tensor_hooks = this;
}
SavedTensorHooks::~SavedTensorHooks() { saved_tensor_hooks = previous_; }

bool SavedTensorHooks::innermost() const { return saved_tensor_hooks == this; }

SavedTensorHooks::Pause::Pause(const SavedTensorHooks& hooks) {
  LS_CHECK(hooks.innermost(), "only the innermost hooks can pause");
  paused_ = std::exchange(saved_tensor_hooks, hooks.previous_);
}
SavedTensorHooks::Pause::~Pause() { saved_tensor_hooks = paused_; }

}  // namespace lockstep
