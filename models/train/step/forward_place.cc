#include "models/train/step/forward_place.h"

namespace lockstep::models {

ForwardPlace::ForwardPlace(Module& model) {
  for (const auto& [path, module] : model.NamedModules()) {
    module->AddPreForwardHook([this, path = path](Module&) { running_.push_back(path); });
    module->AddPostForwardHook([this, path = path](Module&) {
      for (const OnEnd& on_end : on_end_) on_end(path);
      if (!running_.empty()) running_.pop_back();
    });
  }
}

const std::string& ForwardPlace::path() const {
  static const std::string none;
  return running_.empty() ? none : running_.back();
}

}  // namespace lockstep::models
