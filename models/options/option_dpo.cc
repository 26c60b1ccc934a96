#include "models/options/option_dpo.h"

#include "models/options/config_checks.h"

namespace lockstep::models {

void AddDpoOptions(Options& options, DpoRunOptions& dpo) {
  options.Add("dpo.loss", &dpo.loss,
              {.choices = {"sigmoid", "ipo"},
               .aliases = {"loss_type"},
               .doc = "train.objective=dpo: loss of the margin between the answers' rewards: "
                      "sigmoid (-log sigmoid), or ipo (the squared distance to a margin of 1 / (2 "
                      "beta), with log-ratios per token)"});
  options.Add("dpo.beta", &dpo.beta,
              {.above = 0,
               .max = 1e6,
               .doc = "train.objective=dpo: strength of the penalty for leaving the reference, "
                      "which is the model without its adapters"});
  options.Add("dpo.label_smoothing", &dpo.label_smoothing,
              {.min = 0,
               .below = 0.5,
               .doc = "train.objective=dpo: the assumed share of pairs whose labels are swapped"});
}

void CheckDpo(const Options& options, const RunConfig& config) {
  const DpoRunOptions d;
  const bool on = config.train.objective == "dpo";
  const auto needs_dpo = [&](std::string_view key, const auto& value, const auto& initial) {
    CheckEffect(options, key, value, initial, on, "train.objective = \"dpo\"");
  };
  needs_dpo("dpo.loss", config.dpo.loss, d.loss);
  needs_dpo("dpo.beta", config.dpo.beta, d.beta);
  needs_dpo("dpo.label_smoothing", config.dpo.label_smoothing, d.label_smoothing);
  if (!on) return;
  const auto refuse = [&](bool bad, std::string_view key, std::string_view why) {
    if (!bad) return;
    options.Fail({"train.objective", key}, StrCat(options.Describe("train.objective"), " with ",
                                                  options.Describe(key), ": ", why));
  };
  refuse(!config.lora.init_from.empty(), "lora.init_from",
         "the reference is the model without its adapters, and would lack these: merge them first "
         "(export_gpt --checkpoint=BASE --adapter=FOLDER --out=merged), and train new ones with "
         "init_from=merged and lora.rank = 16");
  refuse(config.lora.rank == 0, "lora.rank",
         "the reference is the model without its adapters, so there must be some: use "
         "lora.rank = 16");
  refuse(config.dpo.loss == "ipo" && config.dpo.label_smoothing > 0, "dpo.label_smoothing",
         "the ipo loss has no smoothing: leave it out");
  constexpr std::string_view kDropout =
      "the reference has no dropout, and with it answers would differ by chance: leave it out";
  refuse(config.model.dropout > 0, "model.dropout", kDropout);
  refuse(config.lora.dropout > 0, "lora.dropout", kDropout);
  refuse(config.data.document_mask, "data.document_mask",
         "each answer has a row of its own: leave it out");
  refuse(config.data.format == "text", "data.format", "pairs of answers are conversations");
}

}  // namespace lockstep::models
