// Lockstep's own format, which has every field of a GptConfig that decides numbers.
#include "models/gpt/hf/llama_keys.h"

namespace lockstep::models {
namespace {

OrderedJson MixtureConfig(const GptConfig& c) {
  const nn::MixtureOptions& m = c.mixture;
  return {{"n_expert", m.n_expert},         {"n_expert_used", m.n_expert_used},
          {"n_inner", m.n_inner},           {"n_shared", m.n_shared},
          {"shared_gate", m.shared_gate},   {"n_dense", c.n_dense},
          {"router", RouterName(m.router)}, {"router_scale", m.router.scale},
          {"balance_loss", m.balance_loss}, {"z_loss", m.z_loss},
          {"bias_rate", m.bias_rate}};
}

nn::MixtureOptions FromMixture(const Fields& f) {
  nn::MixtureOptions m;
  m.n_expert = f.Integer("n_expert");
  m.n_expert_used = f.Integer("n_expert_used");
  m.n_inner = f.Integer("n_inner");
  m.n_shared = f.Integer("n_shared", 0);
  m.shared_gate = f.Bool("shared_gate", false);
  m.router = ParseRouter(f.Text("router", ""));
  m.router.scale = f.Number("router_scale", 1);
  m.balance_loss = f.Number("balance_loss", 0);
  m.z_loss = f.Number("z_loss", 0);
  m.bias_rate = f.Number("bias_rate", 0);
  return m;
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j;
  j["model_type"] = "lockstep";
  j["vocab_size"] = c.vocab_size;
  j["block_size"] = c.block_size;
  j["n_layer"] = c.n_layer;
  j["n_head"] = c.n_head;
  j["n_kv_head"] = c.n_kv_head;
  j["head_dim"] = c.head_dim;
  j["qkv_bias"] = c.qkv_bias;
  j["qk_norm"] = Name(c.qk_norm);
  j["value_embed"] = c.value_embed;
  j["attn_scale"] = c.attn_scale;
  j["attn_softcap"] = c.attn_softcap;
  j["window"] = c.window;
  j["window_pattern"] = c.window_pattern;
  j["n_embd"] = c.n_embd;
  j["n_inner"] = c.n_inner;
  j["dropout"] = c.dropout;
  j["bias"] = c.bias;
  j["tie_embeddings"] = c.tie_embeddings;
  j["norm"] = Name(c.norm);
  j["norm_eps"] = c.norm_eps;
  j["norm_offset"] = c.norm_offset;
  j["norm_weight"] = c.norm_weight;
  j["norm_place"] = Name(c.norm_place);
  j["init_std"] = c.init_std;
  j["activation"] = Name(c.activation);
  j["position"] = Name(c.position);
  if (c.position == Position::kRope) {
    j["rope_theta"] = c.rope.theta;
    j["rope_scaling"] = WriteRopeScaling(c.rope);
    j["rope_reverse"] = c.rope.reverse;
    j["rope_local_theta"] = c.rope_local_theta;
    j["rope_skip"] = c.rope_skip;
  }
  j["embed_scale"] = c.embed_scale;
  j["embed_norm"] = c.embed_norm;
  j["embed_mix"] = c.embed_mix;
  j["logit_softcap"] = c.logit_softcap;
  if (c.mixture.n_expert > 0) j["mixture"] = MixtureConfig(c);
  return j;
}

// True or false in files of earlier versions.
nn::QkNorm ReadQkNorm(const Fields& f) {
  if (f.Has("qk_norm") && f.j["qk_norm"].is_boolean()) {
    return f.Bool("qk_norm", false) ? nn::QkNorm::kHead : nn::QkNorm::kNone;
  }
  return ParseQkNorm(f.Text("qk_norm", "none"));
}

GptConfig Read(const Fields& f) {
  GptConfig c;
  c.vocab_size = f.Integer("vocab_size");
  c.block_size = f.Integer("block_size");
  c.n_layer = f.Integer("n_layer");
  c.n_head = f.Integer("n_head");
  c.n_kv_head = f.Integer("n_kv_head");
  c.head_dim = f.Integer("head_dim", 0);
  c.qkv_bias = f.Bool("qkv_bias", false);
  c.qk_norm = ReadQkNorm(f);
  c.value_embed = f.Bool("value_embed", false);
  c.attn_scale = f.Number("attn_scale", 0);
  c.attn_softcap = f.Number("attn_softcap", 0);
  c.window = f.Integer("window", 0);
  c.window_pattern = f.Integer("window_pattern", 0);
  c.n_embd = f.Integer("n_embd");
  c.n_inner = f.Integer("n_inner");
  c.dropout = f.Number("dropout", 0);
  c.bias = f.Bool("bias", c.bias);
  c.tie_embeddings = f.Bool("tie_embeddings", c.tie_embeddings);
  c.norm = ParseNorm(f.Text("norm", ""));
  c.norm_eps = f.Number("norm_eps", c.norm_eps);
  c.norm_offset = f.Integer("norm_offset", 0);
  c.norm_weight = f.Bool("norm_weight", true);
  c.norm_place = ParseNormPlace(f.Text("norm_place", "pre"));
  c.init_std = f.Number("init_std", c.init_std);
  c.activation = ParseActivation(f.Text("activation", ""));
  c.position = ParsePosition(f.Text("position", ""));
  if (c.position == Position::kRope) c.rope = ReadRope(f, c.rope, c.block_size);
  c.rope.reverse = f.Bool("rope_reverse", false);
  c.rope_local_theta = f.Number("rope_local_theta", 0);
  c.rope_skip = f.Integer("rope_skip", 0);
  c.embed_scale = f.Number("embed_scale", 1);
  c.embed_norm = f.Bool("embed_norm", false);
  c.embed_mix = f.Bool("embed_mix", false);
  c.logit_softcap = f.Number("logit_softcap", 0);
  if (f.Has("mixture")) {
    c.mixture = FromMixture(f.Object("mixture"));
    c.n_dense = f.Object("mixture").Integer("n_dense", 0);
  }
  return c;
}

}  // namespace

const HfFamily kHfLockstep = {.model_type = "lockstep",
                              .title = "GPT",
                              .layout = HfLayout::kOwn,
                              .read = Read,
                              .write = Write};

}  // namespace lockstep::models
