#include "core/parameter.h"

#include "core/thread_pool.h"

namespace lockstep {
namespace {

// Elements that one thread initialises at a time: some 100 microseconds of normal variates.
constexpr int64_t kInitGrain = 4096;

}  // namespace

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

void Parameter::SetLayout(ShardLayout layout) {
  LS_CHECK(value_.device().is_meta() && leaf().observers().empty(), "the layout of parameter '",
           name_, "' can be set only before Materialize and before anything observes its gradient");
  layout.Check(logical_shape_);
  layout_ = std::move(layout);
  const Tensor value = Tensor::Empty(layout_.PartShape(logical_shape_), value_.dtype(), kMeta);
  meta_ = AutogradMeta::ForLeaf(std::make_shared<Leaf>(value));
  if (!name_.empty()) set_name(name_);
  Rebind(value);
}

void Parameter::Materialize(Device device, DType dtype, uint64_t seed) {
  const Tensor value = Tensor::Empty(value_.shape(), dtype, device);
  if (!init_) {
    value.Fill(0);
  } else if (!device.is_meta()) {
    const bool in_place = device.is_cpu() && dtype == DType::kF32;
    const Tensor host = in_place ? value : Tensor::Empty(value.shape(), DType::kF32);
    float* data = host.data<float>();
    ParallelFor(host.numel(), kInitGrain, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const auto [first, count] = layout_.RunAt(logical_shape_, begin);
        const int64_t n = std::min(count, end - begin);
        init_({data + begin, static_cast<size_t>(n)}, first, seed, name_);
        begin += n;
      }
    });
    if (!in_place) value.CopyFrom(host);
  }
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
