#include "models/gpt/lora_targets.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter_config.h"
#include "models/gpt/peft/layer_names.h"
#include "models/options/option_text.h"

namespace lockstep::models {
namespace {

bool Names(const std::string& word, const std::string& module) {
  return fnmatch(word.c_str(), module.c_str(), 0) == 0 ||
         fnmatch(("*." + word).c_str(), module.c_str(), 0) == 0;
}

// As PEFT's regular expressions, for whole names; what is none names nothing.
bool NamesByRegex(const std::string& word, const std::string& module) try {
  return FullMatch(word, module, "lora.targets");
} catch (const InputError&) {
  return false;
}

bool NamesAll(const std::string& word) { return word == "all" || word == "all-linear"; }

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

void TrainSavedModules(Gpt& model, const std::string& names) {
  if (names.empty()) return;
  const GptConfig& config = model.config();
  std::set<const Parameter*> adapted;
  for (const nn::LoraAdapter* adapter : nn::LoraAdapters(model)) {
    adapted.insert(adapter->weight().get());
  }
  for (const std::string& word : WordsOf(names)) {
    const PeftConfig named{.modules_to_save = WordsOf(names)}, own{.modules_to_save = {word}};
    std::set<std::string> known;
    bool used = false;
    for (const auto& [name, p] : StoredParameters(model)) {
      if (name.find(".experts.") != name.npos) continue;  // stacked
      const std::vector<ModuleRows> parts = ModuleRowsOf(config, name, *p);
      const auto saved = [&](const PeftConfig& by) {
        return std::ranges::count_if(parts,
                                     [&](const auto& part) { return by.Saves(part.module); });
      };
      for (const ModuleRows& part : parts) {
        known.insert(part.module.substr(part.module.rfind('.') + 1));
      }
      if (saved(own) == 0) continue;
      used = true;
      LS_CHECK(!adapted.contains(p.get()), "lora.modules_to_save: '", word, "' names ", name,
               ", which has an adapter: name it in one of lora.targets and lora.modules_to_save");
      LS_CHECK(saved(named) == std::ssize(parts), "lora.modules_to_save: '", word,
               "' names some rows of a matrix that is one here (", name,
               "): name what has its other rows, too, or use lora.targets");
      LS_CHECK(!config.tie_embeddings || name != "wte.weight", "lora.modules_to_save: '", word,
               "' names the embedding, to which this model's head is tied, so that both would "
               "change, which PEFT's files cannot say: leave it out");
      p->SetTrainable(true);
    }
    std::string list;
    for (const std::string& name : known) list += StrCat(list.empty() ? "" : ", ", name);
    LS_CHECK(used, "lora.modules_to_save: '", word, "' names no module of this model",
             config.lora.quantizes() ? ", or one of 4 bits" : "", "; there are: ", list);
  }
}

std::vector<nn::LoraTarget> LoraTargets(const Gpt& model) {
  const nn::LoraOptions options = ToNn(model.config().lora);
  const std::vector<std::string> words = WordsOf(model.config().lora.targets);
  std::vector<bool> used(words.size());
  const std::vector<AdaptableLayer> layers = AdaptableLayers(model);
  std::vector<bool> is_regex;
  for (const std::string& word : words) {
    is_regex.push_back(
        !NamesAll(word) && std::ranges::none_of(layers, [&](const AdaptableLayer& layer) {
          return std::ranges::any_of(layer.parts,
                                     [&](const auto& part) { return Names(word, part.module); });
        }));
  }
  std::vector<nn::LoraTarget> targets;
  for (const AdaptableLayer& layer : layers) {
    targets.push_back({.path = layer.path});
    nn::LoraTarget& target = targets.back();
    for (const auto& [module, slice, rows] : layer.parts) {
      bool named = false;
      for (size_t i = 0; i < words.size(); ++i) {
        const auto& names = is_regex[i] ? NamesByRegex : Names;
        const bool names_it = NamesAll(words[i]) ? layer.expert < 0 : names(words[i], module);
        if (names_it) named = used[i] = true;
      }
      target.slices.push_back({.name = slice,
                               .rows = rows,
                               .rank = named ? options.rank : 0,
                               .scale = options.scale()});
    }
  }
  for (size_t i = 0; i < words.size(); ++i) {
    LS_CHECK(used[i], "LoRA: '", words[i],
             "' names no matrix of this model; there are: ", List(layers));
  }
  return JoinExperts(layers, std::move(targets), [](const std::string& why) {
    throw ArgumentError(StrCat("lora.targets: ", why, ": name them without the number"));
  });
}

}  // namespace lockstep::models
