// A trainable tensor with what optimizers and parallel modes must know about it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/autograd/node.h"
#include "core/part_exchange.h"
#include "core/shard_layout.h"

namespace lockstep {

// Tensors under their paths: "h.0.attn.c_attn.weight".
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// Writes elements [first, first + values.size()) of the unsharded parameter, in row-major order.
// Each is a pure function of (seed, name, element index): it does not depend on device, dtype,
// sharding, other parameters or how the range is cut, and calls run concurrently. nn/init.h makes
// them.
using Initializer = std::function<void(std::span<float> values, int64_t first, uint64_t seed,
                                       const std::string& name)>;

class Parameter {
 public:
  // Starts on the meta device; Module::Materialize gives it memory.
  Parameter(const Shape& shape, Initializer init, bool decay);

  // The full path once the module tree has been named ("h.0.attn.c_attn.weight"); before that, the
  // name of its slot.
  const std::string& name() const { return name_; }
  void set_name(const std::string& name);
  // For a parameter kept on the host, waits for updates submitted to its device's current stream,
  // unless Show is in effect.
  const Tensor& value() const {
    if (keeps_on_host_) AwaitUpdates();
    return value_;
  }
  operator const Tensor&() const { return value(); }
  Tensor grad() const { return leaf().grad(); }
  // Tensor::RegisterHook of the value.
  template <std::invocable<const Tensor&> F>
  HookHandle RegisterHook(F hook) const {
    return value().RegisterHook(std::move(hook));
  }
  Leaf& leaf() const { return *meta_->leaf; }
  // The size in the unsharded model; value().shape() is this rank's part.
  const Shape& logical_shape() const { return logical_shape_; }
  // Whether AdamW's weight decay applies.
  bool decay() const { return decay_; }
  // This rank's part of the parameter; by default all of it.
  const ShardLayout& layout() const { return layout_; }
  // Cuts a whole parameter, or cuts further one that has been cut: `layout` then repeats its cuts,
  // followed by more, and perhaps a range. `exchange`, which may be null, reaches the other parts;
  // it replaces an earlier one. A value in memory is replaced by a copy of its part, and the leaf
  // by a new one, so call this before anything holds either. Throws ArgumentError if the parameter
  // has been cut otherwise before or has a range, if its gradient is observed or has hooks, or if
  // the layout does not fit its shape.
  void SetLayout(ShardLayout layout, std::shared_ptr<PartExchange> exchange = nullptr);
  const std::shared_ptr<PartExchange>& exchange() const { return exchange_; }
  // This rank's part of a contiguous tensor of the logical shape; that tensor if nothing is cut.
  Tensor PartOf(const Tensor& whole) const;
  // The inverse, collective if the parameter is cut. Throws ArgumentError if there is no exchange.
  Tensor WholeOf(const Tensor& part) const;

  // Gives this rank's part memory on the device, and values if there is a seed. The leaf (hooks,
  // observers) stays; its gradient is emptied.
  void Materialize(Device device, DType dtype, std::optional<uint64_t> seed);
  // Fills this rank's part by the initialiser (zeros if there is none), computed in f32 on the host
  // and rounded to dtype: the bits are those of the same elements of the whole parameter.
  void Initialize(uint64_t seed);
  // Replaces the value by another of the same shape; the leaf stays.
  void SetValue(const Tensor& value);
  // Keeps the value of a parameter on a GPU in page-locked memory of the host, now and after each
  // Materialize and SetValue: value() is a tensor on the CPU, to read and to write, and gradients
  // and optimizers stay on device(). Forward needs copies there: nn::OffloadWeights and
  // dist::FullyShard Show them. It has no effect on the CPU. Call it before an optimizer is made.
  void KeepOnHost();
  bool on_host() const { return keeps_on_host_ && !device_.is_cpu(); }
  // The device on which forward, backward and the update use it: that of value(), unless on_host().
  Device device() const { return device_; }
  void SetTrainable(bool trainable) {
    trainable_ = trainable;
    Rebind(part_);
  }
  bool trainable() const { return trainable_; }
  // Whether Materialize or SetValue was called, on the meta device, too.
  bool materialized() const { return materialized_; }
  // Until Hide, value() is `whole`, of the logical shape, on device(), with its own leaf or this
  // one's: what forward reads while the parts are gathered, or copied from the host. leaf(), grad()
  // and everything else still belong to this rank's part.
  void Show(const Tensor& whole) {
    value_ = whole;
    shown_ = true;
  }
  void Hide() {
    value_ = part_;
    shown_ = false;
  }
  const Tensor& part() const { return part_; }  // value() unless the whole is shown; never waits

 private:
  // Makes `value`, or a copy of it on the host, this rank's part.
  void Keep(const Tensor& value, Device device);
  void Rebind(const Tensor& value);
  void AwaitUpdates() const;

  std::string name_;
  Shape logical_shape_;
  ShardLayout layout_;
  Initializer init_;
  bool decay_;
  bool trainable_ = true;
  bool keeps_on_host_ = false, shown_ = false, materialized_ = false;
  Device device_ = kMeta;
  std::shared_ptr<Edge> meta_;
  std::shared_ptr<PartExchange> exchange_;
  Tensor part_;   // this rank's
  Tensor value_;  // the same, unless the whole is shown
};

}  // namespace lockstep
