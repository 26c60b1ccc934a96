// Several adapters of one model, by name.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/gpt/gpt.h"
#include "models/gpt/peft/adapter.h"

namespace lockstep::models {

// Adapters, of any ranks and targets, of which at most one is in effect:
//   AdapterSet adapters(gpt);
//   adapters.Add("chat", PeftAdapter::Open("out/chat"));
//   adapters.Add("code", PeftAdapter::Open("out/code"));
//   adapters.Use("chat");
// Switching copies the adapter's matrices, which are small compared with the model's. For models
// that generate in one process, and only without other references to the model's parameters.
class AdapterSet {
 public:
  // The model has its weights, and no adapter. It outlives this object, whose destructor leaves the
  // adapter that is in effect.
  explicit AdapterSet(Gpt& model) : model_(model) {}
  AdapterSet(const AdapterSet&) = delete;
  AdapterSet& operator=(const AdapterSet&) = delete;

  // InputError if it does not fit the model; ArgumentError if there is one of that name.
  void Add(const std::string& name, const PeftAdapter& adapter);
  // Puts it in place of the one in effect. ArgumentError for an unknown name.
  void Use(const std::string& name);
  // Makes the model what it was without adapters.
  void UseNone();
  const std::string& used() const { return used_; }  // "": none

 private:
  Gpt& model_;
  std::string used_;
  std::map<std::string, PeftAdapter> adapters_;
  // What modules_to_save replaced.
  std::vector<std::pair<std::shared_ptr<Parameter>, Tensor>> replaced_;
};

}  // namespace lockstep::models
