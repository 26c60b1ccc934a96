#include "models/gpt/lora_targets.h"

#include <fnmatch.h>

#include <algorithm>

#include "models/gpt/hf_format.h"

namespace lockstep::models {
namespace {

// The words between commas, without spaces.
std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else if (c != ' ') {
      words.back() += c;
    }
  }
  return words;
}

bool Names(const std::string& word, const std::string& name) {
  return word == "all" || fnmatch(word.c_str(), name.c_str(), 0) == 0 ||
         fnmatch(("*." + word).c_str(), name.c_str(), 0) == 0;
}

// "model.layers.0.self_attn.q_proj" is q_proj.
std::string LastPart(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Those of attention and MLPs, but not gates and routers.
bool MayHaveAdapter(const std::string& path, const Module* module) {
  const std::string last = LastPart(path);
  const bool linear = dynamic_cast<const nn::Linear*>(module) != nullptr ||
                      dynamic_cast<const nn::BranchLinear*>(module) != nullptr;
  return linear && (last == "c_attn" || last == "c_proj" || last == "c_fc");
}

}  // namespace

nn::LoraOptions ToNn(const LoraOptions& o) {
  return {.rank = o.rank,
          .alpha = o.alpha,
          .dropout = o.dropout,
          .rank_stabilized = o.rank_stabilized};
}

std::vector<nn::LoraTarget> LoraTargets(Gpt& model) {
  const nn::LoraOptions options = ToNn(model.config().lora);
  const std::vector<std::string> words = Words(model.config().lora.targets);
  std::vector<bool> used(words.size());
  std::vector<nn::LoraTarget> targets;
  std::vector<std::string> known;  // last parts
  std::string example;
  for (const auto& [path, module] : model.NamedModules()) {
    if (!MayHaveAdapter(path, module)) continue;
    nn::LoraTarget target{.path = path};
    const std::vector<HfRows> names = HfRowsOf(model, path + ".weight");
    for (const auto& [tensor, rows] : names) {
      const std::string name = tensor.substr(0, tensor.rfind('.'));
      if (example.empty()) example = name;
      if (std::ranges::find(known, LastPart(name)) == known.end()) known.push_back(LastPart(name));
      bool named = false;
      for (size_t i = 0; i < words.size(); ++i) {
        if (Names(words[i], name)) named = used[i] = true;
      }
      target.slices.push_back({.name = names.size() == 1 ? "" : LastPart(name),
                               .rows = rows,
                               .rank = named ? options.rank : 0,
                               .scale = options.scale()});
    }
    const auto adapted = [](const nn::LoraSlice& slice) { return slice.rank > 0; };
    if (std::ranges::any_of(target.slices, adapted)) targets.push_back(std::move(target));
  }
  for (size_t i = 0; i < words.size(); ++i) {
    if (used[i]) continue;
    std::string list = "all";
    for (const std::string& name : known) list += ", " + name;
    throw ArgumentError(StrCat("'", words[i], "' names no matrix of this model, whose names are ",
                               list, ", and with what is before them, as in ", example));
  }
  return targets;
}

}  // namespace lockstep::models
