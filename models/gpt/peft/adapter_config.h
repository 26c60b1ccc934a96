// adapter_config.json: what PEFT (https://github.com/huggingface/peft) records about an adapter in
// addition to its tensors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::models {

// The fields that decide what an adapter computes. Modules have Hugging Face's names:
// "model.layers.0.self_attn.q_proj".
struct PeftConfig {
  std::string base{};  // base_model_name_or_path
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;  // of training
  bool rank_stabilized = false;
  bool fan_in_fan_out = false;  // the base has its weights as [in, out], as GPT-2 does
  // Ranks and alphas of modules that differ: regular expressions for the end of their names, of
  // which the first that matches counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern{};
  std::vector<std::pair<std::string, double>> alpha_pattern{};
  // The modules with an adapter, by the ends of their names, or one regular expression for them.
  std::vector<std::string> target_modules{};
  std::string target_regex{};
  // Modules that have none nevertheless, named in the same way.
  std::vector<std::string> exclude_modules{};
  std::string exclude_regex{};
  // If not empty, only layers with these numbers have adapters, except for modules whose whole name
  // is in target_modules. The number follows one of these patterns in a module's name, or any name.
  std::vector<int64_t> layers_to_transform{};
  std::vector<std::string> layers_pattern{};
  // By the ends of their names, or of those they are in: modules that were trained as a whole.
  std::vector<std::string> modules_to_save{};

  int64_t RankOf(const std::string& module) const;
  // The factor of the adapter's output: alpha / rank, or alpha / sqrt(rank).
  double ScaleOf(const std::string& module) const;
  bool Targets(const std::string& module) const;
  bool Saves(const std::string& module) const;

 private:
  bool TransformsLayerOf(const std::string& module) const;
};

// Whether Python's re.fullmatch finds the pattern. InputErrors begin with `where`.
bool FullMatch(const std::string& pattern, const std::string& text, const std::string& where);

// InputErrors name `source` and the field, for an adapter that is not a LoRA or of a kind that
// Lockstep lacks (use_dora, lora_bias, layer_replication, trainable_token_indices and others that a
// later PEFT may add), since a field that is ignored would give wrong results.
PeftConfig ParsePeftConfig(const std::string& text, const std::string& source);
std::string ToJson(const PeftConfig& config);

}  // namespace lockstep::models
