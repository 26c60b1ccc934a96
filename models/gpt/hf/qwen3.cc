// Qwen3, without experts and with them (Qwen3-MoE): Qwen Team, "Qwen3 technical report" (2025).
#include "core/io/json.h"
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

GptConfig ReadQwen3(const Fields& f, const LlamaDefaults& defaults) {
  f.Expect("attention_bias", false);  // the MLPs have none
  GptConfig c = ReadLlamaKeys(f, defaults);
  c.qk_norm = nn::QkNorm::kHead;
  ReadQwenWindows(f, &c);
  return c;
}

GptConfig Read(const Fields& f) {
  return ReadQwen3(f, {.positions = 32768, .n_kv_head = 32, .head_dim = 128});
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j = WriteLlamaKeys(c, "qwen3", "Qwen3ForCausalLM");
  j["attention_bias"] = false;
  WriteQwenWindows(c, &j);
  return j;
}

// How many of the first layers have an MLP. That other layers have one is refused.
int64_t DenseLayers(const Fields& f) {
  f.Expect("decoder_sparse_step", 1);
  const Json& layers = f.Array("mlp_only_layers");
  Json first = Json::array();
  while (first.size() < layers.size()) first.push_back(first.size());
  if (layers != first) {
    f.Fail("mlp_only_layers", StrCat("is ", layers.dump(), "; only the first layers, as in ",
                                     first.dump(), ", are supported"));
  }
  return static_cast<int64_t>(layers.size());
}

GptConfig ReadMoe(const Fields& f) {
  f.Expect("use_sliding_window", false);  // which transformers takes differently here
  GptConfig c = ReadQwen3(f, {.positions = 32768, .n_kv_head = 4});
  nn::MixtureOptions& m = c.mixture;
  // transformers 5 writes Mixtral's name.
  m.n_expert = f.Integer(f.Has("num_local_experts") ? "num_local_experts" : "num_experts", 128);
  m.n_expert_used = f.Integer("num_experts_per_tok", 8);
  m.n_inner = f.Integer("moe_intermediate_size", 768);
  m.router.normalise = f.Bool("norm_topk_prob", false);
  m.balance_loss = f.Number("router_aux_loss_coef", 0.001);
  m.z_loss = f.Object("lockstep").Number("z_loss", 0);
  c.n_dense = DenseLayers(f);
  return c;
}

OrderedJson WriteMoe(const GptConfig& c) {
  OrderedJson j = Write(c);
  j["architectures"] = {"Qwen3MoeForCausalLM"};
  j["model_type"] = "qwen3_moe";
  j["moe_intermediate_size"] = c.mixture.n_inner;
  j["num_experts"] = c.mixture.n_expert;
  j["num_experts_per_tok"] = c.mixture.n_expert_used;
  j["norm_topk_prob"] = c.mixture.router.normalise;
  j["decoder_sparse_step"] = 1;
  j["mlp_only_layers"] = OrderedJson::array();
  for (int64_t i = 0; i < c.n_dense; ++i) j["mlp_only_layers"].push_back(i);
  // The loss of transformers is another function, of all layers together.
  j["router_aux_loss_coef"] = c.mixture.balance_loss;
  j["output_router_logits"] = false;
  j["lockstep"] = {{"z_loss", c.mixture.z_loss}};
  return j;
}

}  // namespace

const HfFamily kHfQwen3 = {.model_type = "qwen3", .title = "Qwen3", .read = Read, .write = Write};
const HfFamily kHfQwen3Moe = {
    .model_type = "qwen3_moe",
    .title = "Qwen3-MoE",
    .read = ReadMoe,
    .write = WriteMoe,
    .experts = {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}};

}  // namespace lockstep::models
