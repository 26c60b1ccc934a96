#include "core/autograd.h"

#include <atomic>
#include <utility>

#include "core/error.h"
#include "core/slots.h"

namespace lockstep {
namespace {

thread_local bool grad_enabled = true;
thread_local SavedTensorHooks* saved_tensor_hooks = nullptr;
std::atomic<uint64_t> next_sequence{1};

void AccumulateInto(const Tensor& from, const Tensor& to) {
  to.storage().BumpVersion();
  if (to.numel() > 0) accumulate_slot(CurrentStream(to.device()), from, to);
}

}  // namespace

bool GradEnabled() { return grad_enabled; }
GradMode::GradMode(bool enabled) : previous_(grad_enabled) { grad_enabled = enabled; }
GradMode::~GradMode() { grad_enabled = previous_; }

// ---- Leaf ----

Leaf::Leaf(const Tensor& value) : shape_(value.shape()), dtype_(value.dtype()) {}

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
  ZeroGrad();
}

void Leaf::SetGrad(const Tensor& grad) {
  LS_CHECK(grad.defined() && grad.shape() == shape_, "gradient ", grad.Describe(), " for '", name_,
           "' of shape ", shape_);
  // The user may write to what he gave, and optimizers write to gradients.
  if (fixed_) {
    grad_.CopyFrom(grad.Detach());
  } else {
    grad_ = grad.Detach().Clone();
  }
  fresh_ = false;
}

void Leaf::ShareGrad(const Tensor& grad) {
  LS_CHECK(grad.defined() && grad.shape() == shape_, "gradient ", grad.Describe(), " for '", name_,
           "' of shape ", shape_);
  grad_ = grad.Detach();
  fresh_ = false;
}

// ---- GradSink ----

GradSink::Target GradSink::Open(const Tensor& like) {
  return Open(like.shape(), like.dtype(), like.device());
}

GradSink::Target GradSink::OpenAnyDType(const Tensor& like) {
  return OpenAnyDType(like.shape(), like.dtype(), like.device());
}

GradSink::Target GradSink::OpenAnyDType(const Shape& shape, DType dtype, Device device) {
  return Open(shape, leaf_ ? leaf_->grad_dtype() : dtype, device);
}

void GradSink::CheckGiven(const Shape& shape, DType dtype, Device device) {
  if (node_ == nullptr) return;
  const auto name = [this] { return StrCat("the Backward of node '", node_->name(), "' gave "); };
  LS_CHECK(needed(), name(), "a gradient for its input ", input_,
           ", which needs none: look at needs[", input_, "] first");
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
    // Memory that others hold as well is not written. Adding to a copy rounds as adding in place
    // does; a scratch would not, and who else holds a gradient must not change bits.
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
    // The other sink may have been opened and not yet been written to: add after the node is done.
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
  // Memory that others hold as well (whoever handed it over, the user) is never written.
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
  // Optimizers and clipping write gradients in place, so a leaf never shares one.
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

// ---- SavedTensor ----

SavedTensor::SavedTensor(const Tensor& tensor, const char* what) : what_(what) {
  if (!tensor.defined()) return;
  if (saved_tensor_hooks != nullptr) {
    SavedTensorHooks* hooks = saved_tensor_hooks;
    packed_ = hooks->pack_(tensor.Detach());
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
                       ") as it was in forward, but it was overwritten since (version ",
                       tensor_.storage().version(), ", saved ", version_,
                       "): run backward before writing to it, or write to a Clone()"));
  }
  return tensor_;
}

SavedTensorHooks::SavedTensorHooks(Pack pack, Unpack unpack)
    : pack_(std::move(pack)),
      unpack_(std::make_shared<const Unpack>(std::move(unpack))),
      previous_(saved_tensor_hooks) {
  saved_tensor_hooks = this;
}
SavedTensorHooks::~SavedTensorHooks() { saved_tensor_hooks = previous_; }

// ---- Node ----

uint64_t NextSequence() { return next_sequence.load(std::memory_order_relaxed); }

Node::Node(const char* name)
    : name_(name), sequence_(next_sequence.fetch_add(1, std::memory_order_relaxed)) {}

Node::~Node() {
  std::vector<std::shared_ptr<Node>> dying;
  auto take = [&dying](std::vector<Edge>& edges) {
    for (Edge& edge : edges) {
      if (edge.node) dying.push_back(std::move(edge.node));
    }
  };
  take(inputs_);
  while (!dying.empty()) {
    std::shared_ptr<Node> node = std::move(dying.back());
    dying.pop_back();
    if (node.use_count() == 1) take(node->inputs_);
  }
}

bool NeedsGrad(std::span<const Tensor* const> inputs) {
  if (!grad_enabled) return false;
  for (const Tensor* t : inputs) {
    if (t->requires_grad()) return true;
  }
  return false;
}
bool NeedsGrad(std::initializer_list<const Tensor*> inputs) {
  return NeedsGrad(std::span(inputs.begin(), inputs.size()));
}

void Record(std::shared_ptr<Node> node, std::span<const Tensor* const> inputs,
            std::span<Tensor* const> outputs) {
  for (const Tensor* input : inputs) {
    Edge edge;
    if (const auto& meta = input->autograd()) edge = {meta->node, meta->output, meta->leaf};
    LS_CHECK(!edge.node || edge.node->sequence() < node->sequence(), "the node '", node->name(),
             "' was made before its input, by '", edge.node->name(),
             "': make it when all inputs are there");
    node->inputs_.push_back(std::move(edge));
  }
  int index = 0;
  for (Tensor* output : outputs) {
    LS_CHECK(!output->requires_grad(), "output ", index, " of the node '", node->name(),
             "' has a gradient of its own already: Detach() it, or make a new tensor");
    node->outputs_.push_back({output->shape(), output->dtype(), output->device()});
    output->set_autograd(std::make_shared<AutogradMeta>(AutogradMeta{nullptr, node, index++}));
  }
}

}  // namespace lockstep
