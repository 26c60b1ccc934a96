#include "models/options/option_offload.h"

#include "core/error.h"
#include "models/options/option_text.h"

namespace lockstep::models {

OffloadChoice ParseOffload(std::string_view text) {
  if (text == "none") return {};
  OffloadChoice choice;
  for (const std::string& word : WordsOf(text)) {
    bool* chosen = word == "activations" ? &choice.activations
                   : word == "optimizer" ? &choice.optimizer
                   : word == "weights"   ? &choice.weights
                                         : nullptr;
    if (chosen == nullptr || *chosen) {
      throw InputError(
          "must be none, or some of activations, optimizer, weights, each once, as in "
          "optimizer,weights");
    }
    *chosen = true;
  }
  return choice;
}

std::string Describe(const OffloadChoice& choice) {
  std::string text;
  const auto add = [&](bool chosen, const char* what) {
    if (chosen) text += StrCat(text.empty() ? "" : ", ", what);
  };
  add(choice.activations, "activations");
  add(choice.optimizer, "optimizer state");
  add(choice.weights, "weights of blocks");
  return text.empty() ? "nothing" : text;
}

}  // namespace lockstep::models
