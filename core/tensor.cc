#include "core/tensor.h"

#include <cstring>

#include "core/autograd/node.h"
#include "core/slots.h"

namespace lockstep {
namespace {

// The bytes from the first element to the last.
std::pair<uintptr_t, uintptr_t> Extent(const Tensor& x) {
  int64_t elements = 1;
  for (int i = 0; i < x.ndim(); ++i) elements += (x.dim(i) - 1) * x.strides()[i];
  const auto begin = reinterpret_cast<uintptr_t>(x.raw_data());
  return {begin, begin + static_cast<uintptr_t>(elements * SizeOf(x.dtype()))};
}

// Whether writing to one may change the other before it is read. Neither is empty.
bool Overlap(const Tensor& from, const Tensor& to) {
  if (from.device() != to.device() || from.device().is_meta()) return false;
  const auto [from_begin, from_end] = Extent(from);
  const auto [to_begin, to_end] = Extent(to);
  const bool same =
      from_begin == to_begin && from.strides() == to.strides() && from.dtype() == to.dtype();
  return from_begin < to_end && to_begin < from_end && !same;
}

void CheckLeaf(const char* what, const Tensor& x) {
  LS_CHECK(!x.requires_grad() || x.autograd()->leaf, what, " of ", x.Describe(),
           ", the result of '", x.autograd()->node->name(),
           "': only a leaf keeps a gradient. To update a leaf w in place, write\n"
           "  { const NoGrad no_grad; w.CopyFrom(w - lr * w.grad()); }\n"
           "RegisterHook shows the gradient of a result");
}

}  // namespace

Tensor Tensor::Empty(const Shape& shape, DType dtype, Device device) {
  int64_t bytes = 0;
  LS_CHECK(!__builtin_mul_overflow(shape.numel(), SizeOf(dtype), &bytes), "a tensor of shape ",
           shape, " and dtype ", dtype, " is too large");
  return FromStorage(Storage::Allocate(bytes, device), dtype, shape);
}

Tensor Tensor::Zeros(const Shape& shape, DType dtype, Device device) {
  return Full(shape, 0.0, dtype, device);
}

Tensor Tensor::Full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor x = Empty(shape, dtype, device);
  x.Fill(value);
  return x;
}

Tensor Tensor::FromBytes(std::span<const std::byte> bytes, const Shape& shape, DType dtype,
                         Device device) {
  Tensor x = Empty(shape, dtype);
  LS_CHECK(static_cast<int64_t>(bytes.size()) == x.bytes(), "a tensor of shape ", shape,
           " and dtype ", dtype, " has ", x.bytes(), " bytes, got ", bytes.size());
  if (!bytes.empty()) std::memcpy(x.raw_data(), bytes.data(), bytes.size());
  return x.To(device);
}

Tensor Tensor::FromStorage(Storage storage, DType dtype, const Shape& shape, int64_t offset) {
  Tensor x;
  x.storage_ = std::move(storage);
  x.dtype_ = dtype;
  x.shape_ = shape;
  x.strides_ = shape.ContiguousStrides();
  x.offset_ = offset;
  x.numel_ = shape.numel();
  const int64_t capacity = x.storage_.bytes() / SizeOf(dtype);
  LS_CHECK(offset >= 0 && offset <= capacity && x.numel_ <= capacity - offset, "a tensor of ",
           dtype, shape, " at element ", offset, " does not fit into a storage of ",
           x.storage_.bytes(), " bytes");
  return x;
}

bool Tensor::is_contiguous() const {
  int64_t step = 1;
  for (int i = ndim() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != step) return numel_ == 0;
    step *= shape_[i];
  }
  return true;
}

std::string Tensor::Describe() const {
  if (defined()) return StrCat(dtype_, shape_, " on ", device());
  return unmade_ ? "a gradient that Backward has not made" : "undefined tensor";
}

void Tensor::ThrowUnmade() {
  throw ArgumentError(
      "this tensor is a gradient that Backward has not made: none has reached its leaf, or none "
      "since ZeroGrad. Read it after Backward, or check defined() first");
}

void* Tensor::raw_data() const {
  if (unmade_) ThrowUnmade();
  void* data = storage_.data();
  return data == nullptr ? nullptr : static_cast<char*>(data) + offset_ * SizeOf(dtype_);
}

double Tensor::Item() const {
  LS_CHECK(numel_ == 1, "Item() needs a tensor of one element, got ", Describe());
  return *Detach().To(kCpu).To(DType::kF64).data<double>();
}

Tensor Tensor::Contiguous() const { return is_contiguous() ? *this : Clone(); }

Tensor Tensor::Clone() const { return Copied(dtype_, device()); }

Tensor Tensor::To(Device device) const {
  return this->device() == device ? *this : Copied(dtype_, device);
}

Tensor Tensor::To(DType dtype) const { return dtype_ == dtype ? *this : Copied(dtype, device()); }

Tensor Tensor::Copied(DType dtype, Device device) const {
  Tensor copy = Empty(shape_, dtype, device);
  copy.CopyFrom(Detach());
  if (!IsFloating(dtype)) return copy;
  RecordOp("copy", {this}, {&copy}, {}, [](const SavedTensors&, Gradients& grads) {
    const Tensor dy = grads[0].To(grads.spec(0).device);
    grads.OpenAnyDType(0).Write(dy);
  });
  return copy;
}

void Tensor::CopyFrom(const Tensor& source) const {
  LS_CHECK(defined() && source.defined() && source.shape_ == shape_, "copy of ", source.Describe(),
           " into ", Describe(), ": the shapes differ");
  LS_CHECK(!(GradEnabled() && (requires_grad() || source.requires_grad())), "CopyFrom: the ",
           source.requires_grad() ? "source, " : "tensor that is written to, ",
           (source.requires_grad() ? source : *this).Describe(),
           ", requires a gradient, and a copy records none: write\n"
           "  { const NoGrad no_grad; w.CopyFrom(source); }\n"
           "or Detach() first");
  for (int i = 0; i < ndim(); ++i) {
    LS_CHECK(strides_[i] != 0 || shape_[i] <= 1, "copy into ", Describe(), ", whose strides are ",
             strides_,
             ": an expanded tensor has several elements at one place; copy into its Clone()");
  }
  storage_.BumpVersion();
  if (numel_ == 0) return;
  LS_CHECK(!source.device().is_meta() || device().is_meta(),
           "a tensor on the meta device has no bytes to copy to ", device());
  const Device where = device().is_cpu() ? source.device() : device();
  copy_slot(CurrentStream(where), Overlap(source, *this) ? source.Clone() : source, *this);
}

void Tensor::Fill(double value) const {
  LS_CHECK(!(GradEnabled() && requires_grad()),
           "Fill of a tensor that requires a gradient: Detach() first");
  const Device where = device();
  storage_.BumpVersion();
  if (numel_ > 0) fill_slot(CurrentStream(where), *this, value);
}

bool Tensor::requires_grad() const { return autograd_ && autograd_->defined(); }

Tensor& Tensor::SetRequiresGrad(bool value) {
  LS_CHECK(defined() && IsFloating(dtype_), "only floating tensors have gradients, not ",
           Describe());
  LS_CHECK(!requires_grad() || autograd_->leaf,
           "only a leaf can be told whether it requires a gradient; "
           "this tensor is the result of an operation: Detach() it");
  if (value && !requires_grad()) autograd_ = Edge::To(std::make_shared<Leaf>(*this));
  if (!value) autograd_ = nullptr;
  return *this;
}

Tensor Tensor::grad() const {
  CheckLeaf("grad()", *this);
  LS_CHECK(requires_grad(), "only a leaf that requires a gradient has one: ", Describe(),
           " does not: call SetRequiresGrad() on it");
  return autograd_->leaf->grad();
}

void Tensor::ZeroGrad() const {
  CheckLeaf("ZeroGrad()", *this);
  if (requires_grad()) autograd_->leaf->ZeroGrad();
}

HookHandle Tensor::AddHook(GradHook hook) const {
  LS_CHECK(requires_grad(), "RegisterHook of ", Describe(),
           ", for which backward computes no gradient: call SetRequiresGrad() on it, or on what it "
           "is computed from, first");
  return autograd_->leaf ? autograd_->leaf->AddHook(std::move(hook))
                         : autograd_->node->AddHook(autograd_->output, std::move(hook));
}

}  // namespace lockstep
