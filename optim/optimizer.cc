#include "optim/optimizer.h"

#include <map>
#include <set>

namespace lockstep::optim {

Optimizer::Optimizer(std::vector<std::shared_ptr<Parameter>> parameters) {
  std::set<std::string> names;
  for (std::shared_ptr<Parameter>& p : parameters) {
    LS_CHECK(p != nullptr, "an optimizer got a null parameter");
    LS_CHECK(names.insert(p->name()).second, "two parameters of an optimizer are named '",
             p->name(), "': call Materialize on the module that holds them all, which names them");
    if (p->trainable()) parameters_.push_back(std::move(p));
  }
}

void Optimizer::ZeroGrad() {
  for (const auto& p : parameters_) p->leaf().ZeroGrad();
}

void Optimizer::LoadState(const NamedTensors& state) {
  const NamedTensors own = NamedState();
  std::map<std::string, Tensor> expected(own.begin(), own.end());
  std::map<std::string, Tensor> given;
  for (const auto& [name, tensor] : state) {
    const auto it = expected.find(name);
    if (it == expected.end()) {
      throw InputError(StrCat("optimizer state: unknown tensor '", name,
                              "': it belongs to another model or optimizer"));
    }
    if (!given.emplace(name, tensor).second) {
      throw InputError(StrCat("optimizer state: the tensor '", name, "' is given twice"));
    }
    const Tensor& want = it->second;
    if (!tensor.defined() || !(tensor.shape() == want.shape()) || tensor.dtype() != want.dtype()) {
      throw InputError(StrCat("optimizer state: '", name, "' must be ", want.dtype(), want.shape(),
                              ", got ", tensor.Describe(), ": it belongs to another model"));
    }
  }
  for (const auto& [name, tensor] : own) {
    if (!given.contains(name)) {
      throw InputError(StrCat("optimizer state: the tensor '", name, "' is missing (", given.size(),
                              " of ", own.size(), " are there)"));
    }
  }
  for (const auto& [name, tensor] : own) tensor.CopyFrom(given.at(name));
}

}  // namespace lockstep::optim
