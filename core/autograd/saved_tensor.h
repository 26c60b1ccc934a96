// What forward keeps for backward.
#pragma once

#include <any>
#include <functional>
#include <memory>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

// A tensor kept for backward. Its storage must not be written between forward and backward: Unpack
// throws Error naming `what` if it was. Hooks may replace what is kept (activation checkpointing,
// offload).
class SavedTensor {
 public:
  SavedTensor() = default;
  SavedTensor(const Tensor& tensor, const char* what);
  Tensor Unpack() const;
  bool defined() const { return tensor_.defined() || unpack_ != nullptr; }
  void Reset() { *this = SavedTensor(); }

 private:
  friend class SavedTensorHooks;
  Tensor tensor_;
  uint64_t version_ = 0;
  const char* what_ = "";
  std::any packed_;
  std::shared_ptr<const std::function<Tensor(const std::any&)>> unpack_;
};

// What a node keeps.
class SavedTensors {
 public:
  // The reference stays valid.
  SavedTensor& Add(const Tensor& tensor, const char* what) {
    return *tensors_.emplace_back(std::make_unique<SavedTensor>(tensor, what));
  }
  size_t size() const { return tensors_.size(); }
  // Unpacked; undefined if it was.
  Tensor operator[](size_t i) const { return tensors_[i]->Unpack(); }
  // The same, and drops it unless the graph is retained: the last to hold it may overwrite it.
  Tensor Take(size_t i);
  void Reset() {
    for (const auto& tensor : tensors_) tensor->Reset();
  }

 private:
  std::vector<std::unique_ptr<SavedTensor>> tensors_;
};

// Within its scope, tensors that this thread saves go through `pack`, and `unpack` restores them.
// The innermost scope wins; what `pack` itself saves goes to the one around it. Scopes end in the
// reverse order.
class SavedTensorHooks {
 public:
  // `what` names the tensor in errors: "the input of gelu".
  using Pack = std::function<std::any(const Tensor&, const char* what)>;
  using Unpack = std::function<Tensor(const std::any&)>;
  SavedTensorHooks(Pack pack, Unpack unpack);

  // Whether no scope of this thread is within this one's.
  bool innermost() const;

  // Within its lifetime the scope around `hooks`, the innermost, applies instead.
  class Pause {
   public:
    explicit Pause(const SavedTensorHooks& hooks);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    SavedTensorHooks* paused_;
  };

  ~SavedTensorHooks();
  SavedTensorHooks(const SavedTensorHooks&) = delete;
  SavedTensorHooks& operator=(const SavedTensorHooks&) = delete;

 private:
  friend class SavedTensor;
  Pack pack_;
  std::shared_ptr<const Unpack> unpack_;
  SavedTensorHooks* previous_;
};

}  // namespace lockstep
