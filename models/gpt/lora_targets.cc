#include "models/gpt/lora_targets.h"

#include <fnmatch.h>

#include <algorithm>

#include "models/gpt/peft/adapter_config.h"
#include "models/gpt/peft/layer_names.h"
#include "models/options/option_text.h"

namespace lockstep::models {
namespace {

bool Names(const std::string& word, const std::string& module) {
  return word == "all" || word == "all-linear" || fnmatch(word.c_str(), module.c_str(), 0) == 0 ||
         fnmatch(("*." + word).c_str(), module.c_str(), 0) == 0;
}

// As PEFT's regular expressions, for whole names; what is none names nothing.
bool NamesByRegex(const std::string& word, const std::string& module) try {
  return FullMatch(word, module, "lora.targets");
} catch (const InputError&) {
  return false;
}

std::string List(const std::vector<AdaptableLayer>& layers) {
  if (layers.empty()) return "all";
  return StrCat("all, ", AdaptableNames(layers), ", and these with what is before them, as in ",
                layers[0].parts[0].module);
}

}  // namespace

nn::LoraOptions ToNn(const LoraOptions& o) {
  return {
      .rank = o.rank, .alpha = o.alpha, .dropout = o.dropout, .rank_stabilized = o.rank_stabilized};
}

std::vector<nn::LoraTarget> LoraTargets(const Gpt& model) {
  const nn::LoraOptions options = ToNn(model.config().lora);
  const std::vector<std::string> words = WordsOf(model.config().lora.targets);
  std::vector<bool> used(words.size());
  const std::vector<AdaptableLayer> layers = AdaptableLayers(model);
  std::vector<bool> is_regex;
  for (const std::string& word : words) {
    is_regex.push_back(std::ranges::none_of(layers, [&](const AdaptableLayer& layer) {
      return std::ranges::any_of(layer.parts,
                                 [&](const auto& part) { return Names(word, part.module); });
    }));
  }
  std::vector<nn::LoraTarget> targets;
  for (const AdaptableLayer& layer : layers) {
    nn::LoraTarget target{.path = layer.path};
    bool adapted = false;
    for (const auto& [module, slice, rows] : layer.parts) {
      bool named = false;
      for (size_t i = 0; i < words.size(); ++i) {
        const auto& names = is_regex[i] ? NamesByRegex : Names;
        if (names(words[i], module)) named = used[i] = true;
      }
      adapted |= named;
      target.slices.push_back({.name = slice,
                               .rows = rows,
                               .rank = named ? options.rank : 0,
                               .scale = options.scale()});
    }
    if (adapted) targets.push_back(std::move(target));
  }
  for (size_t i = 0; i < words.size(); ++i) {
    LS_CHECK(used[i], "LoRA: '", words[i],
             "' names no matrix of this model; there are: ", List(layers));
  }
  return targets;
}

}  // namespace lockstep::models
