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
              {.choices = {"gelu", "gelu_exact", "relu", "silu", "swiglu"},
               .aliases = {"activation_function", "hidden_act"},
               .doc = "activation of the MLP: gelu (the tanh form, as in GPT-2), gelu_exact, relu, "
                      "silu, or swiglu (gated, as in Llama)"});
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
  options.Add("model.qk_norm", &model.qk_norm,
              {.doc = "normalize each head's queries and keys (RMS norms, as in Qwen3)"});
  options.Add(
      "model.n_inner", &model.n_inner,
      {.min = 0,
       .max = 10000000,
       .aliases = {"intermediate_size", "ffn_dim", "hidden_dim", "d_ff"},
       .doc = "hidden width of the MLP; 0: 4 n_embd, or with swiglu 8/3 n_embd rounded up to a "
              "multiple of 64"});
  options.Add("model.norm_eps", &model.norm_eps,
              {.min = 1e-30,
               .max = 1,
               .aliases = {"rms_norm_eps", "layer_norm_epsilon"},
               .doc = "added to the variance or mean square"});
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
