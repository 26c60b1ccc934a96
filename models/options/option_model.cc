#include "models/options/option_model.h"

#include "models/options/option_mixture.h"
#include "models/options/presets.h"

namespace lockstep::models {
namespace {

constexpr double kMaxTokens = 1e9;  // ids are i32

void AddRopeOptions(Options& options, ModelOptions& model) {
  options.Add(
      "model.rope_theta", &model.rope_theta,
      {.above = 0, .max = 1e12, .aliases = {"rope_base"}, .doc = "rope: base of the wavelengths"});
  options.Add("model.rope_scaling", &model.rope_scaling,
              {.choices = {"none", "linear", "llama3"},
               .aliases = {"rope_type"},
               .doc = "rope: for contexts longer than the original training's: linear divides all "
                      "frequencies by rope_factor, llama3 the low ones"});
  options.Add("model.rope_factor", &model.rope_factor,
              {.above = 0, .max = 1e6, .doc = "rope_scaling: divisor of the frequencies"});
  options.Add(
      "model.rope_low", &model.rope_low,
      {.above = 0,
       .max = 1e6,
       .aliases = {"low_freq_factor"},
       .doc = "llama3: frequencies with fewer periods than this in rope_original_length are "
              "divided"});
  options.Add(
      "model.rope_high", &model.rope_high,
      {.above = 0,
       .max = 1e6,
       .aliases = {"high_freq_factor"},
       .doc = "llama3: frequencies with more periods are kept, those between interpolated"});
  options.Add("model.rope_original_length", &model.rope_original_length,
              {.min = 1,
               .max = kMaxTokens,
               .aliases = {"original_max_position_embeddings"},
               .doc = "llama3: context of the original training, in tokens"});
  options.Add("model.rope_local_theta", &model.rope_local_theta,
              {.min = 0,
               .max = 1e12,
               .aliases = {"rope_local_base_freq"},
               .doc = "rope: base of the wavelengths in layers with a window, which rope_scaling "
                      "then leaves alone, as in Gemma 3; 0: rope_theta"});
  options.Add("model.rope_skip", &model.rope_skip,
              {.min = 0,
               .max = 10000,
               .aliases = {"no_rope_layer_interval"},
               .doc = "rope: every rope_skip-th layer has no position embedding, as in SmolLM3; 0: "
                      "all have it"});
}

void AddAttentionOptions(Options& options, ModelOptions& model) {
  options.Add("model.qkv_bias", &model.qkv_bias,
              {.aliases = {"attention_bias"},
               .doc = "biases of queries, keys and values where model.bias is false, as in Qwen2"});
  options.Add("model.qk_norm", &model.qk_norm,
              {.choices = {"none", "head", "full"},
               .formerly = {"none", "head"},
               .doc = "RMS norms of queries and keys: of each head (as in Qwen3), or of all heads "
                      "together (full, as in OLMo 2)"});
  options.Add("model.attn_scale", &model.attn_scale,
              {.min = 0, .max = 1e6, .doc = "factor of attention's scores; 0: head_dim^-1/2"});
  options.Add("model.attn_softcap", &model.attn_softcap,
              {.min = 0,
               .max = 1e6,
               .aliases = {"attn_logit_softcapping"},
               .doc = "scores s become cap tanh(s / cap), as in Gemma 2; 0: no cap"});
  options.Add("model.window", &model.window,
              {.min = 0,
               .max = kMaxTokens,
               .aliases = {"sliding_window"},
               .doc = "how many tokens a query attends to, including its own, as in Mistral 7B; 0: "
                      "all before it"});
  options.Add("model.window_pattern", &model.window_pattern,
              {.min = 0,
               .max = 10000,
               .aliases = {"sliding_window_pattern"},
               .doc = "with a window: every window_pattern-th layer attends to all tokens (Gemma "
                      "2: 2, Gemma 3: 6); 0: none does"});
}

}  // namespace

void AddModelOptions(Options& options, ModelOptions& model) {
  options.AddPresets("model.preset", &model.preset, Presets(),
                     {.operational = true,
                      .doc = "named configuration to start from; everything else overrides it"});
  options.Add("model.vocab_size", &model.vocab_size,
              {.min = 0, .max = kMaxTokens, .doc = "tokens the model knows; 0: the tokenizer's"});
  options.Add("model.block_size", &model.block_size,
              {.min = 1,
               .max = kMaxTokens,
               .aliases = {"seq_len", "n_positions", "context_length", "seq"},
               .doc = "longest context, in tokens"});
  options.Add("model.n_layer", &model.n_layer,
              {.min = 1,
               .max = 10000,
               .aliases = {"num_layers", "depth", "layers"},
               .doc = "transformer blocks"});
  options.Add("model.n_head", &model.n_head,
              {.min = 1,
               .max = 1000000,
               .aliases = {"num_heads", "heads"},
               .doc = "attention heads; must divide n_embd, unless there is a head_dim"});
  options.Add("model.n_embd", &model.n_embd,
              {.min = 1,
               .max = 1000000,
               .aliases = {"hidden_size", "d_model", "dim", "embed_dim"},
               .doc = "width of the model"});
  options.Add("model.dropout", &model.dropout,
              {.min = 0, .below = 1, .doc = "dropout probability"});
  options.Add("model.bias", &model.bias, {.doc = "biases in linear layers and layer norms"});
  options.Add("model.norm", &model.norm,
              {.choices = {"layer_norm", "rms_norm"},
               .doc = "normalization: layer_norm (GPT-2), rms_norm (Llama)"});
  options.Add("model.activation", &model.activation,
              {.choices = {"gelu", "gelu_exact", "relu", "silu", "swiglu", "geglu_tanh"},
               .aliases = {"activation_function", "hidden_act"},
               .doc = "activation of the MLP: gelu (the tanh form, as in GPT-2), gelu_exact, relu, "
                      "silu, swiglu (gated, as in Llama), or geglu_tanh (gated, as in Gemma)"});
  options.Add("model.position", &model.position,
              {.choices = {"learned", "rope"},
               .doc = "position embedding: learned (a table, GPT-2), rope (rotary, Llama)"});
  options.Add("model.tie_embeddings", &model.tie_embeddings,
              {.aliases = {"tie_word_embeddings"},
               .doc = "share the token embedding with the output layer"});
  options.Add("model.n_kv_head", &model.n_kv_head,
              {.min = 0,
               .max = 1000000,
               .aliases = {"num_key_value_heads", "n_kv_heads"},
               .doc = "heads of keys and values, each shared by a group of query heads; must "
                      "divide n_head; 0: n_head"});
  options.Add("model.head_dim", &model.head_dim,
              {.min = 0,
               .max = 100000,
               .aliases = {"head_size"},
               .doc = "width of a head; 0: n_embd / n_head"});
  AddAttentionOptions(options, model);
  options.Add("model.n_inner", &model.n_inner,
              {.min = 0,
               .max = 10000000,
               .aliases = {"intermediate_size", "ffn_dim", "hidden_dim", "d_ff"},
               .doc = "hidden width of the MLP; 0: 4 n_embd, or with a gated activation 8/3 n_embd "
                      "rounded up to a multiple of 64"});
  options.Add("model.norm_eps", &model.norm_eps,
              {.min = 1e-30,
               .max = 1,
               .aliases = {"rms_norm_eps", "layer_norm_epsilon"},
               .doc = "number added to the variance or mean square"});
  options.Add(
      "model.norm_offset", &model.norm_offset,
      {.min = 0,
       .max = 1,
       .doc = "norms multiply by offset + weight: with 1, as in Gemma, weights begin at 0"});
  options.Add("model.norm_place", &model.norm_place,
              {.choices = {"pre", "post", "sandwich"},
               .doc = "norms before each branch of a block (pre, as in Llama), after it (post, as "
                      "in OLMo 2), or both (sandwich, as in Gemma)"});
  options.Add("model.embed_scale", &model.embed_scale,
              {.above = 0, .max = 1e6, .doc = "factor of token embeddings; Gemma: sqrt(n_embd)"});
  options.Add("model.logit_softcap", &model.logit_softcap,
              {.min = 0,
               .max = 1e6,
               .aliases = {"final_logit_softcapping"},
               .doc = "logits x become cap tanh(x / cap), as in Gemma 2; 0: no cap"});
  AddRopeOptions(options, model);
  options.Add("model.init_std", &model.init_std,
              {.min = 0,
               .max = 100,
               .aliases = {"initializer_range"},
               .doc = "standard deviation of initial weights, divided by sqrt(2 n_layer) where "
                      "they add to the residual stream; 0: 1 / sqrt(n_embd), which preserves "
                      "variances"});
  AddMixtureOptions(options, model);
}

}  // namespace lockstep::models
