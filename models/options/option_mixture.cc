#include "models/options/option_mixture.h"

#include "core/error.h"
#include "models/options/config_checks.h"

namespace lockstep::models {

void AddMixtureOptions(Options& options, ModelOptions& model) {
  options.Add("model.n_expert", &model.n_expert,
              {.min = 0,
               .max = 1024,
               .aliases = {"num_experts", "num_local_experts", "n_routed_experts"},
               .doc = "number of experts that replace each MLP; 0: no mixture"});
  options.Add("model.n_expert_used", &model.n_expert_used,
              {.min = 1,
               .max = 1024,
               .aliases = {"num_experts_per_tok", "top_k_experts"},
               .doc = "experts per token: those with the largest scores"});
  options.Add("model.n_expert_inner", &model.n_expert_inner,
              {.min = 0,
               .max = 10000000,
               .aliases = {"moe_intermediate_size"},
               .doc = "hidden width of an expert; 0: n_inner"});
  options.Add("model.n_shared_expert", &model.n_shared_expert,
              {.min = 0,
               .max = 1024,
               .aliases = {"n_shared_experts"},
               .doc = "shared experts, used by every token, as one MLP that many times as wide"});
  options.Add("model.shared_gate", &model.shared_gate,
              {.doc = "multiply the shared expert's output by the sigmoid of a gate"});
  options.Add("model.n_dense", &model.n_dense,
              {.min = 0,
               .max = 10000,
               .aliases = {"first_k_dense_replace"},
               .doc = "number of first layers that keep their MLP"});
  options.Add(
      "model.router", &model.router,
      {.choices = {"softmax", "softmax_all", "sigmoid"},
       .doc = "gates of the chosen experts: softmax over these, as in Mixtral; softmax_all: "
              "softmax over all experts, as in OLMoE; sigmoid: as in DeepSeek-V3, balanced by a "
              "bias instead of a loss"});
  options.Add(
      "model.router_scale", &model.router_scale,
      {.above = 0, .max = 1e6, .aliases = {"routed_scaling_factor"}, .doc = "factor of the gates"});
  options.Add("model.balance_loss", &model.balance_loss,
              {.min = 0,
               .max = 1e6,
               .aliases = {"router_aux_loss_coef", "aux_loss_alpha"},
               .doc = "softmax routers: weight of the loss that evens out the load within each "
                      "sequence; with sigmoid there is none"});
  options.Add("model.z_loss", &model.z_loss,
              {.min = 0,
               .max = 1e6,
               .aliases = {"router_z_loss_coef"},
               .doc = "weight of the loss that keeps the router's logits small"});
  options.Add("model.bias_rate", &model.bias_rate,
              {.min = 0,
               .max = 1e6,
               .aliases = {"bias_update_speed"},
               .doc = "sigmoid routers: amount by which a step raises the bias of an expert with "
                      "less than the mean load, and lowers that of one with more"});
}

void CheckMixture(const Options& options, const ModelOptions& model, const std::string& weights) {
  const ModelOptions d, &m = model;  // d: the defaults
  const bool experts = m.n_expert > 0, sigmoid = m.router == "sigmoid";
  const auto needs = [&](std::string_view key, const auto& value, const auto& initial,
                         bool has_effect, std::string_view what) {
    if (weights.empty()) return CheckEffect(options, key, value, initial, has_effect, what);
    if (has_effect || value == initial || !options.IsWritten(key)) return;
    options.Fail({key},
                 StrCat(options.Describe(key), " does nothing without ", what,
                        ", which the weights of ", weights, " do not have: leave ", key, " out"));
  };
  const auto needs_experts = [&](std::string_view key, const auto& value, const auto& initial) {
    needs(key, value, initial, experts, weights.empty() ? "model.n_expert = 8" : "experts");
  };
  needs_experts("model.n_expert_used", m.n_expert_used, d.n_expert_used);
  needs_experts("model.n_expert_inner", m.n_expert_inner, d.n_expert_inner);
  needs_experts("model.n_shared_expert", m.n_shared_expert, d.n_shared_expert);
  needs_experts("model.n_dense", m.n_dense, d.n_dense);
  needs_experts("model.router", m.router, d.router);
  needs_experts("model.router_scale", m.router_scale, d.router_scale);
  needs_experts("model.z_loss", m.z_loss, d.z_loss);
  needs("model.balance_loss", m.balance_loss, d.balance_loss, experts && !sigmoid,
        "model.router = \"softmax\" or \"softmax_all\" and experts");
  needs("model.bias_rate", m.bias_rate, d.bias_rate, experts && sigmoid,
        "model.router = \"sigmoid\"");
  needs("model.shared_gate", m.shared_gate, d.shared_gate,
        m.n_shared_expert > 0 || (experts && !weights.empty()), "model.n_shared_expert = 1");
  if (!experts || !weights.empty()) return;
  if (m.n_expert_used > m.n_expert) {
    options.Fail({"model.n_expert_used", "model.n_expert"},
                 StrCat(options.Describe("model.n_expert_used"), " is more than ",
                        options.Describe("model.n_expert"),
                        ": use model.n_expert_used = ", m.n_expert, " at most"));
  }
  if (m.n_dense >= m.n_layer) {
    options.Fail({"model.n_dense", "model.n_layer"},
                 StrCat(options.Describe("model.n_dense"), " leaves no layer of ",
                        options.Describe("model.n_layer"), " to experts: use model.n_dense = ",
                        m.n_layer - 1, " at most, or model.n_expert = 0"));
  }
}

}  // namespace lockstep::models
