#include "models/gpt/peft/adapter_set.h"

#include "core/autograd/grad_mode.h"
#include "models/gpt/hf/hf_format.h"
#include "nn/lora/add_lora.h"

namespace lockstep::models {

void AdapterSet::Add(const std::string& name, const PeftAdapter& adapter) {
  LS_CHECK(!name.empty(), "an adapter's name must not be empty");
  LS_CHECK(!adapters_.contains(name), "there is an adapter '", name, "' already");
  Gpt shape(model_.config());
  adapter.AddTo(shape);
  adapters_.emplace(name, adapter);
}

void AdapterSet::Use(const std::string& name) {
  const auto it = adapters_.find(name);
  if (it == adapters_.end()) {
    std::string names;
    for (const auto& [known, adapter] : adapters_) names += (names.empty() ? "" : ", ") + known;
    throw ArgumentError(StrCat("there is no adapter '", name, "'; there are: ", names));
  }
  if (used_ == name) return;
  UseNone();
  it->second.AddTo(model_);
  used_ = name;
  const NoGrad no_grad;
  for (const auto& [path, p] : StoredParameters(model_)) {
    if (p->trainable()) replaced_.emplace_back(p, p->value().Clone());
  }
  it->second.LoadInto(model_);
}

void AdapterSet::UseNone() {
  if (used_.empty()) return;
  const NoGrad no_grad;
  for (const auto& [p, value] : replaced_) p->value().Detach().CopyFrom(value);
  replaced_.clear();
  nn::RemoveLora(model_);
  used_.clear();
}

}  // namespace lockstep::models
