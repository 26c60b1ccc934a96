#include "core/autograd/grad_sink.h"

#include <utility>

#include "core/autograd/node.h"
#include "core/error.h"
#include "core/slots.h"

namespace lockstep {
namespace {

void AccumulateInto(const Tensor& from, const Tensor& to) {
  to.storage().BumpVersion();
  if (to.numel() > 0) accumulate_slot(CurrentStream(to.device()), from, to);
}

}  // namespace

void GradSink::Target::Write(const Tensor& grad) const {
  if (accumulate) {
    AccumulateInto(grad, tensor);
  } else {
    tensor.CopyFrom(grad);
  }
}

GradSink::Target GradSink::Open(const Tensor& like) {
  return Open(like.shape(), like.dtype(), like.device());
}

GradSink::Target GradSink::OpenAnyDType(const Tensor& like) {
  return OpenAnyDType(like.shape(), like.dtype(), like.device());
}

GradSink::Target GradSink::OpenAnyDType(const Shape& shape, DType dtype, Device device) {
  if (leaf_) return Open(shape, leaf_->grad_dtype(), device);
  // The copies of a parameter that a node gave (dist::FanOut) may have wider gradients than values.
  const Node* receiver = node_ && needed() ? node_->inputs_[input_].node.get() : nullptr;
  if (receiver)
    dtype = receiver->outputs_[static_cast<size_t>(node_->inputs_[input_].output)].dtype;
  return Open(shape, dtype, device);
}

void GradSink::CheckGiven(const Shape& shape, DType dtype, Device device) {
  if (node_ == nullptr) return;
  const auto name = [this] { return StrCat("the Backward of node '", node_->name(), "' gave "); };
  LS_CHECK(needed(), name(), "a gradient for its input ", input_,
           ", which needs none: check needs[", input_, "] first");
  LS_CHECK(!given_, name(), "two gradients for its input ", input_, ": add them up first");
  given_ = true;
  const Edge& edge = node_->inputs_[input_];
  const Shape& wanted =
      leaf_ ? leaf_->shape_ : edge.node->outputs_[static_cast<size_t>(edge.output)].shape;
  LS_CHECK(shape == wanted, name(), "a gradient of shape ", shape, " for its input ", input_,
           ", whose shape is ", wanted, ": they must be equal; sum over broadcast dimensions");
  if (leaf_) return;
  const auto& input = edge.node->outputs_[static_cast<size_t>(edge.output)];
  LS_CHECK(dtype == input.dtype && device == input.device, name(), "a gradient of ", dtype, " on ",
           device, " for its input ", input_, ", which is ", input.dtype, " on ", input.device,
           ": they must be equal; use To(...)");
}

GradSink::Target GradSink::Open(const Shape& shape, DType dtype, Device device) {
  CheckGiven(shape, dtype, device);
  const bool fixed = leaf_ && leaf_->fixed_;
  Tensor* to = slot();
  if (!scratch_only_ && empty() && (!leaf_ || leaf_->grad_dtype() == dtype)) {
    if (!fixed) *to = Tensor::Empty(shape, dtype, device);
    if (leaf_) leaf_->fresh_ = false;
    return {*to, false};
  }
  if (!scratch_only_ && !empty() && to->dtype() == dtype && to->is_contiguous()) {
    // Shared memory is never written. Adding to a copy rounds as adding in place does; adding to a
    // scratch would not, and the bits must not depend on who else holds a gradient.
    if (!fixed && !to->storage().unique()) *to = to->Clone();
    return {*to, true};
  }
  scratch_ = Tensor::Empty(shape, dtype, device);
  return {scratch_, false};
}

void GradSink::Put(const Tensor& grad) {
  LS_CHECK(grad.defined(), "the Backward of node '", node_ ? node_->name() : "root",
           "' gave an undefined gradient for its input ", input_);
  CheckGiven(grad.shape(), grad.dtype(), grad.device());
  if (scratch_only_) {
    // The other sink may be open but not yet written: add once the node is done.
    scratch_ = grad.Detach();
  } else {
    Deliver(grad.Detach());
  }
}

void GradSink::Finish() {
  if (scratch_.defined()) Deliver(std::exchange(scratch_, Tensor()));
}

void GradSink::Deliver(Tensor grad) {
  Tensor* to = slot();
  const bool fixed = leaf_ && leaf_->fixed_;
  // Memory that others hold, too (the giver, the user), is never written.
  if (!empty()) {
    if (fixed || to->storage().unique()) {
      AccumulateInto(grad, *to);
    } else {
      *to = to->Clone();
      AccumulateInto(grad, *to);
    }
    return;
  }
  if (!leaf_) {
    *to = grad.Contiguous();
    return;
  }
  // Optimizers and clipping write gradients in place, so a leaf never shares its gradient.
  const bool ours =
      grad.storage().unique() && grad.is_contiguous() && grad.dtype() == leaf_->dtype_;
  if (fixed) {
    to->CopyFrom(grad);
  } else if (ours) {
    *to = std::move(grad);
  } else {
    *to = Tensor::Empty(leaf_->shape_, leaf_->dtype_, grad.device());
    to->CopyFrom(grad);
  }
  leaf_->fresh_ = false;
}

}  // namespace lockstep
