// Which module's forward is running.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/module.h"

namespace lockstep::models {

// Follows the forwards of a model and of each module in it by hooks, which cannot be removed: both
// must live as long as forwards run, of which none may be left by an exception. A forward that runs
// again to recompute is followed no more.
class ForwardPlace {
 public:
  // Called when a module's forward has ended, with its path.
  using OnEnd = std::function<void(const std::string& path)>;

  explicit ForwardPlace(Module& model);
  ForwardPlace(const ForwardPlace&) = delete;
  ForwardPlace& operator=(const ForwardPlace&) = delete;

  void AddOnEnd(OnEnd on_end) { on_end_.push_back(std::move(on_end)); }
  // The innermost module; "": the model itself, or none.
  const std::string& path() const;

 private:
  std::vector<std::string> running_;
  std::vector<OnEnd> on_end_;
};

}  // namespace lockstep::models
