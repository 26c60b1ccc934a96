#include "core/parameter.h"

namespace lockstep {

Parameter::Parameter(const Shape& shape, Initializer init, bool decay)
    : logical_shape_(shape), init_(std::move(init)), decay_(decay) {
  Tensor value = Tensor::Empty(shape, DType::kF32, kMeta);
  meta_ = AutogradMeta::ForLeaf(std::make_shared<Leaf>(value));
  Rebind(value);
}

void Parameter::set_name(const std::string& name) {
  name_ = name;
  meta_->leaf->set_name(name);
}

void Parameter::Materialize(Device device, DType dtype, uint64_t seed) {
  const Tensor value = Tensor::Empty(value_.shape(), dtype, device);
  if (!device.is_meta() && init_) init_(value, seed, name_);
  leaf().SetDType(dtype);
  Rebind(value);
}

void Parameter::SetValue(const Tensor& value) {
  LS_CHECK(value.shape() == value_.shape(), "parameter '", name_, "' has shape ", value_.shape(),
           ", got ", value.Describe());
  leaf().SetDType(value.dtype());
  Rebind(value);
}

void Parameter::Rebind(const Tensor& value) {
  value_ = value.Detach();
  if (trainable_) value_.set_autograd(meta_);
}

}  // namespace lockstep
