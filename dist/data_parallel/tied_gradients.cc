#include "dist/data_parallel/tied_gradients.h"

#include <algorithm>

#include "core/slots.h"
#include "core/stream.h"

namespace lockstep::dist {
namespace {

std::shared_ptr<nn::TiedWeight> TiedIn(Module* module) {
  const auto* reader = dynamic_cast<const nn::ReadsTiedWeight*>(module);
  return reader != nullptr ? reader->tied() : nullptr;
}

// Whether the module itself has the parameter, rather than a child.
bool HasItself(const Module& module, const Parameter& parameter) {
  for (const auto& [name, p] : module.NamedParameters()) {
    if (p.get() == &parameter) return name.find('.') == std::string::npos;
  }
  return false;
}

}  // namespace

TiedGradients::TiedGradients(Module& module) {
  const auto modules = module.NamedModules();
  for (const auto& [path, m] : modules) {
    const auto tied = TiedIn(m);
    if (!tied || tied->gradient_holder() || !tied->weight()->trainable()) continue;
    const bool has_owner = std::ranges::any_of(modules, [&](const auto& other) {
      return !TiedIn(other.second) && HasItself(*other.second, *tied->weight());
    });
    if (!has_owner) continue;  // the only use
    tied->KeepApart(path.empty() ? "weight" : path + ".weight");
    uses_.push_back(tied);
  }
}

TiedGradients::~TiedGradients() {
  for (const auto& use : uses_) use->Join();
}

void TiedGradients::Add() const {
  for (const auto& use : uses_) {
    const Tensor grad = use->gradient_holder()->grad();
    if (!grad.defined()) continue;
    Leaf& leaf = use->weight()->leaf();
    if (leaf.grad().defined()) {
      if (grad.numel() > 0) accumulate_slot(CurrentStream(grad.device()), grad, leaf.grad());
    } else {
      leaf.SetGrad(grad);
    }
    use->gradient_holder()->leaf().ZeroGrad();
  }
}

void TiedGradients::Clear() const {
  for (const auto& use : uses_) use->gradient_holder()->leaf().ZeroGrad();
}

std::vector<std::shared_ptr<Parameter>> GradientParameters(Module& module) {
  std::vector<std::shared_ptr<Parameter>> all = module.Parameters(), apart;
  const auto modules = module.NamedModules();
  for (const auto& [path, m] : modules) {
    const auto tied = TiedIn(m);
    if (!tied || !tied->gradient_holder() || std::ranges::count(apart, tied->gradient_holder()) > 0)
      continue;
    apart.push_back(tied->gradient_holder());
    const bool read_elsewhere = std::ranges::any_of(modules, [&](const auto& other) {
      const auto of_other = TiedIn(other.second);
      return !(of_other && of_other->gradient_holder()) &&
             HasItself(*other.second, *tied->weight());
    });
    if (!read_elsewhere) std::erase(all, tied->weight());
  }
  all.insert(all.end(), apart.begin(), apart.end());
  return all;
}

}  // namespace lockstep::dist
