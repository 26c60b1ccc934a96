#include "models/options/option_lora.h"

#include "models/options/config_checks.h"

namespace lockstep::models {

void AddLoraOptions(Options& options, LoraOptions& lora) {
  options.Add("lora.rank", &lora.rank,
              {.min = 0,
               .max = 65536,
               .aliases = {"lora_r", "lora_rank"},
               .doc = "rank of low-rank adapters, which are trained instead of the weights of "
                      "init_from; 0: none, all weights are trained"});
  options.Add("lora.alpha", &lora.alpha,
              {.above = 0,
               .max = 1e6,
               .aliases = {"lora_alpha"},
               .doc = "the adapters' output is multiplied by alpha / rank"});
  options.Add("lora.dropout", &lora.dropout,
              {.min = 0,
               .below = 1,
               .aliases = {"lora_dropout"},
               .doc = "dropout probability of the adapters' inputs"});
  options.Add(
      "lora.targets", &lora.targets,
      {.aliases = {"target_modules", "lora_target_modules"},
       .doc = "which matrices get an adapter: all, or Hugging Face's names (q_proj,v_proj), which "
              "may contain * and be preceded by a path (layers.1*.mlp.*), or PEFT's regular "
              "expression "
              "for whole names (.*\\.(q|v)_proj)"});
  options.Add("lora.base", &lora.base,
              {.choices = {"model", "nf4", "nf4_single"},
               .aliases = {"bnb_4bit_quant_type"},
               .doc = "storage of the frozen matrices of attention and MLPs (QLoRA): model (as "
                      "train.precision says), nf4 (4 bits, with 8-bit scales: 4.13 bits a weight), "
                      "nf4_single (with f32 scales: 4.5)"});
  options.Add("lora.rank_stabilized", &lora.rank_stabilized,
              {.aliases = {"use_rslora"}, .doc = "divide alpha by the root of the rank instead"});
  options.Add("lora.init_from", &lora.init_from,
              {.aliases = {"adapter", "adapter_name_or_path"},
               .doc = "a folder of adapters (PEFT's or a checkpoint's) to continue training; it "
                      "decides rank, alpha and targets"});
}

void CheckLora(const Options& options, const LoraOptions& lora) {
  const LoraOptions d;
  if (!lora.init_from.empty() && lora.rank > 0) {
    options.Fail({"lora.rank", "lora.init_from"},
                 StrCat(options.Describe("lora.rank"), " makes new adapters, and ",
                        options.Describe("lora.init_from"), " names adapters with ranks of their ",
                        "own: leave one of them out"));
  }
  const auto needs_rank = [&](std::string_view key, const auto& value, const auto& initial) {
    CheckEffect(options, key, value, initial, lora.rank > 0, "lora.rank = 16");
  };
  needs_rank("lora.alpha", lora.alpha, d.alpha);
  const bool adapters = lora.rank > 0 || !lora.init_from.empty();
  CheckEffect(options, "lora.dropout", lora.dropout, d.dropout, adapters, "lora.rank = 16");
  CheckEffect(options, "lora.base", lora.base, d.base, adapters, "lora.rank = 16");
  needs_rank("lora.targets", lora.targets, d.targets);
  needs_rank("lora.rank_stabilized", lora.rank_stabilized, d.rank_stabilized);
}

}  // namespace lockstep::models
