#include "models/options/option_recompute.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "models/options/option_text.h"

namespace lockstep::models {
namespace {

using Part = RecomputeChoice::Part;

constexpr std::array<std::string_view, 6> kOps = {"gelu",       "silu",       "swiglu",
                                                  "geglu_tanh", "layer_norm", "rms_norm"};

std::string Joined(const auto& words) {
  std::string text;
  for (const auto& word : words) text += StrCat(text.empty() ? "" : ", ", word);
  return text;
}

}  // namespace

std::string RecomputableOps() { return Joined(kOps); }

RecomputeChoice ParseRecompute(std::string_view text) {
  if (text == "none") return {};
  if (text == "auto") return {.automatic = true};
  if (text == "block") return {.part = Part::kBlock};
  if (text == "attention") return {.part = Part::kAttention};
  if (text == "mlp") return {.part = Part::kMlp};
  RecomputeChoice choice{.part = Part::kOps};
  for (std::string& word : WordsOf(text)) {
    if (std::find(kOps.begin(), kOps.end(), word) == kOps.end()) {
      throw InputError(StrCat("must be none, auto, block, attention, mlp, or operations of ",
                              RecomputableOps(), ", as in gelu,layer_norm"));
    }
    choice.ops.push_back(std::move(word));
  }
  return choice;
}

std::string Describe(const RecomputeChoice& choice, int64_t n_layer) {
  const std::string layers =
      choice.layers < 0 || choice.layers == n_layer
          ? ""
          : StrCat(" of the first ", choice.layers == 1 ? "" : StrCat(choice.layers, " "), "of ",
                   n_layer, " layers");
  switch (choice.part) {
    case Part::kNone:
      return "nothing";
    case Part::kBlock:
      return StrCat(layers.empty()       ? "all blocks"
                    : choice.layers == 1 ? "the block"
                                         : "the blocks",
                    layers);
    case Part::kAttention:
      return StrCat("the attention", layers);
    case Part::kMlp:
      return StrCat("the MLPs", layers);
    case Part::kOps:
      return StrCat("the results of ", Joined(choice.ops), layers);
  }
  throw ArgumentError("no such part");
}

}  // namespace lockstep::models
