// Mixtral: Jiang et al., "Mixtral of experts" (2024).
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

GptConfig Read(const Fields& f) {
  f.Expect("router_jitter_noise", 0.0);
  GptConfig c =
      ReadLlamaKeys(f, {.positions = 131072, .eps = 1e-5, .rope_theta = 1e6, .n_kv_head = 8});
  c.window = f.Integer("sliding_window", 0);
  c.mixture.n_expert = f.Integer("num_local_experts", 8);
  c.mixture.n_expert_used = f.Integer("num_experts_per_tok", 2);
  c.mixture.n_inner = c.n_inner;
  c.mixture.balance_loss = f.Number("router_aux_loss_coef", 0.001);
  c.mixture.z_loss = f.Object("lockstep").Number("z_loss", 0);
  return c;
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j = WriteLlamaKeys(c, "mixtral", "MixtralForCausalLM");
  j["intermediate_size"] = c.mixture.n_inner;
  j["num_local_experts"] = c.mixture.n_expert;
  j["num_experts_per_tok"] = c.mixture.n_expert_used;
  // The loss of transformers is another function, of all layers together.
  j["router_aux_loss_coef"] = c.mixture.balance_loss;
  j["router_jitter_noise"] = 0.0;
  j["output_router_logits"] = false;
  j["sliding_window"] = c.window > 0 ? OrderedJson(c.window) : OrderedJson(nullptr);
  j["lockstep"] = {{"z_loss", c.mixture.z_loss}};
  return j;
}

}  // namespace

const HfFamily kHfMixtral = {
    .model_type = "mixtral",
    .title = "Mixtral",
    .read = Read,
    .write = Write,
    .experts = {"block_sparse_moe.gate", "block_sparse_moe.experts.", "w1", "w3", "w2"}};

}  // namespace lockstep::models
