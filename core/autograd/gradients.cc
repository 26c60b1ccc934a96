#include "core/autograd/gradients.h"

#include <utility>

#include "core/autograd/backward_parts.h"
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

void GradTarget::Write(const Tensor& grad) const {
  if (accumulate) {
    AccumulateInto(grad, tensor);
  } else {
    tensor.CopyFrom(grad);
  }
}

// ---- One gradient. ----

Tensor* GradSink::slot() const { return leaf_ ? &leaf_->grad_ : buffer_; }
bool GradSink::empty() const { return leaf_ ? leaf_->fresh_ : !buffer_->defined(); }

GradTarget GradSink::Open(const TensorSpec& spec) {
  const bool fixed = leaf_ && leaf_->fixed_;
  Tensor* to = slot();
  if (!scratch_only_ && empty() && (!leaf_ || leaf_->grad_dtype() == spec.dtype)) {
    if (!fixed) *to = Tensor::Empty(spec.shape, spec.dtype, spec.device);
    opened_ = true;
    return {*to, false};
  }
  if (!scratch_only_ && !empty() && to->dtype() == spec.dtype && to->is_contiguous()) {
    // Shared memory is never written. Adding to a copy rounds as adding in place does; adding to a
    // scratch would not, and the bits must not depend on who else holds a gradient.
    if (!fixed && !to->storage().unique()) *to = to->Clone();
    return {*to, true};
  }
  scratch_ = Tensor::Empty(spec.shape, spec.dtype, spec.device);
  return {scratch_, false};
}

void GradSink::Put(Tensor grad) {
  if (scratch_only_) {
    // The other sink may be open but not yet written: add once the node is done.
    scratch_ = std::move(grad);
  } else {
    Deliver(std::move(grad));
  }
}

void GradSink::Finish() {
  // Not before: if backward fails, the leaf has no gradient.
  if (opened_ && leaf_) leaf_->fresh_ = false;
  if (scratch_.defined()) Deliver(std::exchange(scratch_, Tensor()));
}

void GradSink::Deliver(Tensor grad) {
  Tensor* to = slot();
  const bool fixed = leaf_ && leaf_->fixed_;
  // Memory that others hold, too (the giver, the user), is never written.
  if (!empty()) {
    if (!fixed && !to->storage().unique()) *to = to->Clone();
    AccumulateInto(grad, *to);
    return;
  }
  if (!leaf_) {
    *to = grad.Contiguous();
    return;
  }
  // Optimizers and clipping write gradients in place, so a leaf never shares its gradient.
  const bool ours = grad.storage().unique() && grad.bytes() == grad.storage().bytes() &&
                    grad.is_contiguous() && grad.dtype() == leaf_->dtype_;
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

// ---- Those of a node's inputs. ----

Gradients::Gradients(const Node& node, std::vector<Tensor> of_outputs)
    : node_(node), of_outputs_(std::move(of_outputs)), inputs_(node.inputs().size()) {}

Gradients::~Gradients() = default;

bool Gradients::needs(size_t i) const { return inputs_[i].needed; }
size_t Gradients::inputs() const { return inputs_.size(); }
Node* Gradients::receiver(size_t i) const { return inputs_[i].receiver; }
const TensorSpec& Gradients::spec(size_t i) const { return node_.InputSpec(i); }

void Gradients::CheckGiven(size_t i, const Shape& shape, DType dtype, Device device) {
  Input& input = inputs_[i];
  const auto name = [this] { return StrCat("the Backward of node '", node_.name(), "' gave "); };
  LS_CHECK(input.needed, name(), "a gradient for its input ", i, ", which needs none: check needs(",
           i, ") first");
  LS_CHECK(!input.given, name(), "two gradients for its input ", i, ": add them up first");
  input.given = true;
  const Shape& wanted = spec(i).shape;
  LS_CHECK(shape == wanted, name(), "a gradient of shape ", shape, " for its input ", i,
           ", whose shape is ", wanted, ": they must be equal; sum over broadcast dimensions");
  if (input.sink.leaf()) return;
  const TensorSpec& made = *node_.MadeAs(i);
  LS_CHECK(dtype == made.dtype && device == made.device, name(), "a gradient of ", dtype, " on ",
           device, " for its input ", i, ", which is ", made.dtype, " on ", made.device,
           ": they must be equal; use To(...)");
}

GradTarget Gradients::Open(size_t i, DType dtype) {
  const auto& [shape, _, device] = spec(i);
  CheckGiven(i, shape, dtype, device);
  return inputs_[i].sink.Open({shape, dtype, device});
}

GradTarget Gradients::Open(size_t i) {
  if (!needs(i)) return {};
  return Open(i, spec(i).dtype);
}

GradTarget Gradients::OpenAnyDType(size_t i) {
  if (!needs(i)) return {};
  // The copies of a parameter that a node gave (dist::FanOut) may have wider gradients than values.
  const Leaf* leaf = inputs_[i].sink.leaf();
  return Open(i, leaf ? leaf->grad_dtype() : node_.MadeAs(i)->dtype);
}

void Gradients::Put(size_t i, Tensor grad) {
  LS_CHECK(grad.defined(), "the Backward of node '", node_.name(),
           "' gave an undefined gradient for its input ", i);
  CheckGiven(i, grad.shape(), grad.dtype(), grad.device());
  grad.set_autograd(nullptr);
  inputs_[i].sink.Put(std::move(grad));
}

}  // namespace lockstep
