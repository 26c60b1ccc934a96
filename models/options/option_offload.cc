#include "models/options/option_offload.h"

#include <algorithm>

#include "core/error.h"

namespace lockstep::models {

OffloadChoice ParseOffload(std::string_view text) {
  if (text == "none") return {};
  OffloadChoice choice;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string word(text.substr(begin, end - begin));
    std::erase(word, ' ');
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
    begin = end + 1;
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
