#include "core/parameter.h"

#include <algorithm>
#include <utility>

#include "core/offload/host_copies.h"
#include "core/thread_pool.h"

namespace lockstep {
namespace {

// Elements that one thread initialises at a time: some 100 microseconds of normal variates.
constexpr int64_t kInitGrain = 4096;

// What `after` adds to `before`; nullopt unless `after` begins with the cuts of `before`.
std::optional<ShardLayout> Added(const ShardLayout& before, const ShardLayout& after) {
  const auto same = [](const ShardCut& a, const ShardCut& b) {
    return a.axis == b.axis && a.dim == b.dim && a.parts == b.parts && a.part == b.part &&
           a.segments == b.segments;
  };
  const auto [old, rest] = std::ranges::mismatch(before.cuts, after.cuts, same);
  if (before.range || old != before.cuts.end()) return std::nullopt;
  return ShardLayout{.cuts = {rest, after.cuts.end()}, .range = after.range};
}

Tensor PartWithin(const Tensor& whole, const ShardLayout& layout) {
  if (layout.is_whole()) return whole;
  const Tensor part = Tensor::Empty(layout.PartShape(whole.shape()), whole.dtype(), whole.device());
  const Tensor from = whole.View({whole.numel()}), to = part.View({part.numel()});
  if (whole.device().is_meta()) return part;
  layout.ForEachRun(whole.shape(), 0, part.numel(), [&](int64_t i, int64_t first, int64_t count) {
    to.Slice(0, i, i + count).CopyFrom(from.Slice(0, first, first + count));
  });
  return part;
}

}  // namespace

Parameter::Parameter(const Shape& shape, Initializer init, bool decay)
    : logical_shape_(shape), init_(std::move(init)), decay_(decay) {
  Tensor value = Tensor::Empty(shape, DType::kF32, kMeta);
  meta_ = Edge::To(std::make_shared<Leaf>(value));
  leaf().SetOfParameter();
  Rebind(value);
}

void Parameter::set_name(const std::string& name) {
  name_ = name;
  meta_->leaf->set_name(name);
}

void Parameter::SetLayout(ShardLayout layout, std::shared_ptr<PartExchange> exchange) {
  const std::optional<ShardLayout> added = Added(layout_, layout);
  LS_CHECK(leaf().observers().empty() && !leaf().has_hooks() && added &&
               (layout_.is_whole() || !added->is_whole()),
           "parameter '", name_,
           "' can be cut only once along an axis, at last perhaps into ranges, and before anything "
           "observes its gradient (by an observer or Tensor::RegisterHook)");
  layout.Check(logical_shape_);
  const Tensor value = PartWithin(part_.Detach(), *added);
  layout_ = std::move(layout);
  exchange_ = std::move(exchange);
  const int users = leaf().gradient_users();
  meta_ = Edge::To(std::make_shared<Leaf>(value));
  leaf().SetOfParameter();
  leaf().CountGradientUsers(users);
  if (layout_.range) {
    leaf().RefuseHooks(
        "it is sharded by ranges of its elements, and no backward computes the gradient of one; "
        "register hooks on the results of modules instead");
  }
  if (!name_.empty()) set_name(name_);
  Keep(value, device_);
}

Tensor Parameter::PartOf(const Tensor& whole) const {
  LS_CHECK(whole.shape() == logical_shape_ && whole.is_contiguous(), "the whole of parameter '",
           name_, "' is contiguous, of shape ", logical_shape_, ", not ", whole.Describe());
  return PartWithin(whole, layout_);
}

Tensor Parameter::WholeOf(const Tensor& part) const {
  if (layout_.is_whole() && exchange_ == nullptr) return part;
  LS_CHECK(exchange_ != nullptr, "this rank has only a part of parameter '", name_,
           "', and no way to reach the others'");
  return exchange_->Gather(*this, part.Detach().To(device_));
}

void Parameter::Materialize(Device device, DType dtype, std::optional<uint64_t> seed) {
  device_ = device;
  materialized_ = true;
  // What is packed in bytes is so whatever the others are computed in.
  if (!IsFloating(part_.dtype())) dtype = part_.dtype();
  leaf().SetDType(dtype);
  Rebind(on_host() ? HostTensor(part_.shape(), dtype, device)
                   : Tensor::Empty(part_.shape(), dtype, device));
  if (seed) Initialize(*seed);
}

void Parameter::Initialize(uint64_t seed) {
  AwaitUpdates();
  const Tensor value = part_.Detach();
  if (!init_) return value.Fill(0);
  if (value.device().is_meta()) return;
  const bool in_place = value.device().is_cpu() && value.dtype() == DType::kF32;
  const Tensor host = in_place ? value : Tensor::Empty(value.shape(), DType::kF32);
  float* data = host.data<float>();
  const auto initialise = [&](int64_t i, int64_t first, int64_t count) {
    init_({data + i, static_cast<size_t>(count)}, first, seed, name_);
  };
  ParallelFor(host.numel(), kInitGrain, [&](int64_t begin, int64_t end) {
    layout_.ForEachRun(logical_shape_, begin, end, initialise);
  });
  if (in_place) {
    value.storage().BumpVersion();
  } else {
    value.CopyFrom(host);
  }
}

void Parameter::SetValue(const Tensor& value) {
  LS_CHECK(value.shape() == part_.shape(), "parameter '", name_, "' has shape ", part_.shape(),
           ", got ", value.Describe());
  materialized_ = true;
  leaf().SetDType(value.dtype());
  Keep(value, on_host() && value.device().is_cpu() ? device_ : value.device());
}

void Parameter::KeepOnHost() {
  if (std::exchange(keeps_on_host_, true)) return;
  Keep(part_, device_);
}

void Parameter::Keep(const Tensor& value, Device device) {
  device_ = device;
  if (!on_host()) return Rebind(value);
  const Tensor host = HostTensor(value.shape(), value.dtype(), device);
  if (!device.is_meta()) host.CopyFrom(value.Detach());
  Rebind(host);
}

void Parameter::AwaitUpdates() const {
  if (!shown_ && device_.is_cuda()) Synchronize(CurrentStream(device_));
}

void Parameter::Rebind(const Tensor& value) {
  part_ = value.Detach();
  if (trainable_) part_.set_autograd(meta_);
  Hide();
}

}  // namespace lockstep
