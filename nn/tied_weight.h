// A module's use of a weight that belongs to another module as well.
#pragma once

#include <memory>
#include <string>

#include "core/parameter.h"

namespace lockstep::nn {

// How an output head reads the weight of the token embedding (tied weights). The gradients of both
// uses add up in the weight's, unless this use's are kept apart.
class TiedWeight {
 public:
  explicit TiedWeight(std::shared_ptr<Parameter> weight) : weight_(std::move(weight)) {}

  const std::shared_ptr<Parameter>& weight() const { return weight_; }
  // What forward reads: the weight's value, as it is shown at the moment.
  Tensor value() const;

  // From now on the gradients of this use are those of gradient_holder(): a parameter of this name,
  // shaped as this rank's part of the weight, which does not belong to the module; dist::FullyShard
  // cuts it like the weight. The caller adds them to the weight's gradient before the update
  // (dist/data_parallel/tied_gradients.h).
  void KeepApart(const std::string& name);
  void Join() { gradient_holder_ = nullptr; }
  // Null: they are not kept apart.
  const std::shared_ptr<Parameter>& gradient_holder() const { return gradient_holder_; }

 private:
  std::shared_ptr<Parameter> weight_, gradient_holder_;
};

// Modules that read a weight of another module by a TiedWeight derive from this as well.
class ReadsTiedWeight {
 public:
  virtual std::shared_ptr<TiedWeight> tied() const = 0;  // null: its weight is its own

 protected:
  ~ReadsTiedWeight() = default;
};

}  // namespace lockstep::nn
