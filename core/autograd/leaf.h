// Tensors that collect gradients, and their observers.
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

class Leaf;
struct BackwardPlan;

// Observes every backward that involves a leaf it was added to. dist builds on it.
class BackwardObserver {
 public:
  virtual ~BackwardObserver() = default;
  // Whether OnLeafReady should be called early: then nodes compute leaves' gradients first. What
  // only measures or records returns false, and leaves the order as it is.
  virtual bool awaits_leaves() const { return true; }
  virtual void OnBegin(const BackwardPlan&) {}  // before the first node; knows the leaf order
  virtual void OnLeafReady(Leaf&) {}            // once per backward, after the last accumulation
  virtual void OnEnd() {}                       // after the last node; may throw
  virtual void OnError() noexcept {}            // instead of OnEnd if backward throws
};

// A tensor that collects a gradient. Gradients accumulate over backwards until ZeroGrad.
class Leaf {
 public:
  explicit Leaf(const Tensor& value) : Leaf(value.shape(), value.dtype()) {}
  Leaf(const Shape& shape, DType dtype) : shape_(shape), dtype_(dtype) {}

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  const Shape& shape() const { return shape_; }

  // Undefined from construction or ZeroGrad until a backward reaches this leaf.
  Tensor grad() const { return fresh_ ? Tensor::UnmadeGradient(grad_dtype()) : grad_; }
  void ZeroGrad();
  // Gradients are written here from now on: same shape, floating, contiguous, of any dtype (an f32
  // main gradient) and any storage (a slice of a bucket). Resets the gradient.
  void SetDestination(const Tensor& destination);
  // The dtype of gradients that the leaf allocates itself; by default the value's. Resets the
  // gradient.
  void SetDType(DType dtype);
  // The same, by the user's wish: what sums gradients and cannot keep it throws.
  void AskDType(DType dtype) {
    SetDType(dtype);
    asked_ = true;
  }
  std::optional<DType> asked_dtype() const { return asked_ ? std::optional(dtype_) : std::nullopt; }
  // Replaces the gradient by a copy of this one, in the memory of the destination if there is one.
  void SetGrad(const Tensor& grad);
  // The same without a copy, whatever the destination: the two share memory. For captured graphs,
  // which write to the memory they were captured with.
  void ShareGrad(const Tensor& grad);

  // Whether it is a parameter's, and how many use its gradient, as an optimizer does. In a training
  // step, that of a parameter without users would add up unseen (optim/training_step.h).
  bool of_parameter() const { return of_parameter_; }
  void SetOfParameter() { of_parameter_ = true; }
  int gradient_users() const { return gradient_users_; }
  void CountGradientUsers(int more) { gradient_users_ = std::max(0, gradient_users_ + more); }

  void AddObserver(BackwardObserver* observer) { observers_.push_back(observer); }
  void RemoveObserver(BackwardObserver* observer) { std::erase(observers_, observer); }
  const std::vector<BackwardObserver*>& observers() const { return observers_; }

  // Tensor::RegisterHook's. Where there are some, a backward adds up its gradient apart, in the
  // dtype of this leaf's, and hands it over once the hooks have seen it, before the observers hear
  // of it. So where gradients accumulate over backwards, the last bits may differ from those
  // without hooks.
  bool has_hooks() const { return hooks_ != nullptr && !hooks_->empty(); }
  // Throws ArgumentError after RefuseHooks, of a leaf in whose place backward sees others.
  HookHandle AddHook(GradHook hook);
  void RefuseHooks(std::string why) { no_hooks_ = std::move(why); }

 private:
  friend class BackwardRun;
  friend class GradSink;
  friend class Gradients;
  friend class LeafClaims;
  // The dtype that a node must write to avoid a conversion.
  DType grad_dtype() const { return fixed_ ? grad_.dtype() : dtype_; }

  std::string name_ = "unnamed";
  Shape shape_;
  DType dtype_;
  Tensor grad_;
  bool asked_ = false;  // for dtype_
  bool of_parameter_ = false;
  int gradient_users_ = 0;
  bool fixed_ = false;  // grad_ is a permanent destination
  bool fresh_ = true;   // the next write overwrites
  std::vector<BackwardObserver*> observers_;
  std::shared_ptr<GradHooks> hooks_;                   // null: none yet
  std::string no_hooks_;                               // why there can be none
  std::atomic<const void*> in_backward_of_ = nullptr;  // a thread
};

}  // namespace lockstep
