#include "models/train/adopt_weights.h"

#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/options/option_mixture.h"
#include "models/train/model_shape.h"

namespace lockstep::models {
namespace {

// Takes options from the weights of a folder.
struct WeightsFolder {
  const Options& options;
  const std::string& path;

  // Fails if the user asked for a value that differs from that of the weights. With `zero_is_open`
  // 0 means that of the weights.
  template <class T>
  void Adopt(std::string_view key, T* option, T of_weights, bool zero_is_open = false) const {
    const bool open = zero_is_open && *option == T{};
    if (options.IsWritten(key) && *option != of_weights && !open) {
      options.Fail({key}, StrCat(options.Describe(key), ", but the weights of ", path, " have ",
                                 ToToml(OptionValue(of_weights)), ": leave ", key, " out"));
    }
    *option = of_weights;
  }
  void Adopt(std::string_view key, std::string* option, std::string_view of_weights) const {
    Adopt(key, option, std::string(of_weights));
  }
};

// Everything but sizes.
void AdoptKinds(const WeightsFolder& weights, const GptConfig& shape, ModelOptions* m) {
  weights.Adopt("model.bias", &m->bias, shape.bias);
  weights.Adopt("model.tie_embeddings", &m->tie_embeddings, shape.tie_embeddings);
  weights.Adopt("model.norm", &m->norm, Name(shape.norm));
  weights.Adopt("model.norm_eps", &m->norm_eps, shape.norm_eps);
  weights.Adopt("model.norm_offset", &m->norm_offset, shape.norm_offset);
  weights.Adopt("model.norm_place", &m->norm_place, Name(shape.norm_place));
  weights.Adopt("model.qkv_bias", &m->qkv_bias, shape.qkv_bias);
  weights.Adopt("model.qk_norm", &m->qk_norm, Name(shape.qk_norm));
  weights.Adopt("model.attn_scale", &m->attn_scale, shape.attn_scale);
  weights.Adopt("model.attn_softcap", &m->attn_softcap, shape.attn_softcap);
  weights.Adopt("model.window", &m->window, shape.window);
  weights.Adopt("model.window_pattern", &m->window_pattern, shape.window_pattern);
  weights.Adopt("model.embed_scale", &m->embed_scale, shape.embed_scale);
  weights.Adopt("model.logit_softcap", &m->logit_softcap, shape.logit_softcap);
  weights.Adopt("model.activation", &m->activation, Name(shape.activation));
  weights.Adopt("model.position", &m->position, Name(shape.position));
  const RotaryOptions& rope = shape.rope;
  weights.Adopt("model.rope_theta", &m->rope_theta, rope.theta);
  weights.Adopt("model.rope_scaling", &m->rope_scaling, Name(rope.scaling));
  weights.Adopt("model.rope_factor", &m->rope_factor, rope.factor);
  weights.Adopt("model.rope_low", &m->rope_low, rope.low);
  weights.Adopt("model.rope_high", &m->rope_high, rope.high);
  weights.Adopt("model.rope_original_length", &m->rope_original_length, rope.original_length);
  weights.Adopt("model.rope_local_theta", &m->rope_local_theta, shape.rope_local_theta);
  weights.Adopt("model.rope_skip", &m->rope_skip, shape.rope_skip);
}

// The options have widths of shared experts in units of an expert's.
void AdoptMixture(const WeightsFolder& weights, const GptConfig& shape, ModelOptions* m) {
  const Options& options = weights.options;
  const nn::MixtureOptions& x = shape.mixture;
  weights.Adopt("model.n_expert", &m->n_expert, x.n_expert);
  if (x.n_expert == 0) return CheckMixture(options, *m, weights.path);
  weights.Adopt("model.n_expert_used", &m->n_expert_used, x.n_expert_used);
  weights.Adopt("model.n_expert_inner", &m->n_expert_inner, x.n_inner, true);
  if (x.n_shared % x.n_inner != 0 && options.IsWritten("model.n_shared_expert")) {
    options.Fail({"model.n_shared_expert"},
                 StrCat(options.Describe("model.n_shared_expert"), ", but the shared expert of ",
                        weights.path, " is ", x.n_shared, " wide, no multiple of the ", x.n_inner,
                        " of an expert: leave model.n_shared_expert out"));
  }
  weights.Adopt("model.n_shared_expert", &m->n_shared_expert, x.n_shared / x.n_inner);
  weights.Adopt("model.shared_gate", &m->shared_gate, x.shared_gate);
  weights.Adopt("model.n_dense", &m->n_dense, shape.n_dense);
  weights.Adopt("model.router", &m->router, std::string(RouterName(x.router)));
  weights.Adopt("model.router_scale", &m->router_scale, x.router.scale);
  CheckMixture(options, *m, weights.path);
}

// Fails unless training continues with these adapters as they are: so does a dry run, which reads
// no weights.
void CheckGoesOn(const Options& options, const PeftAdapter& adapter, const LoraOptions& lora) {
  const bool has_own = !lora.init_from.empty();
  if (lora.rank == 0 && !has_own) {
    options.Fail({"init_from", "lora.rank"},
                 StrCat(adapter.folder(), " has adapters, and without lora.rank all weights are ",
                        "trained: use lora.rank = ", adapter.config().rank,
                        " to continue with these, or merge them first (export_gpt --checkpoint=",
                        adapter.folder(), " --out=merged)"));
  }
  if (!has_own && adapter.config().rank_pattern.empty() && lora.rank != adapter.config().rank) {
    options.Fail({"lora.rank"}, StrCat(options.Describe("lora.rank"), ", but the adapters of ",
                                       adapter.folder(), " have rank ", adapter.config().rank,
                                       ": use lora.rank = ", adapter.config().rank));
  }
  const std::string kind = adapter.base_kind();
  if (kind.empty() || kind == lora.base) return;
  options.Fail({"lora.base"},
               StrCat(options.Describe("lora.base"), ", but the adapters of ", adapter.folder(),
                      " were trained on weights in 4 bits: use lora.base = \"", kind, "\""));
}

}  // namespace

GptConfig ShapeFromWeights(const Options& options, const std::string& path, RunConfig* config) {
  GptConfig shape = ReadHfConfig(WeightsOf(path));
  const WeightsFolder weights{options, path};
  ModelOptions& m = config->model;
  weights.Adopt("model.n_layer", &m.n_layer, shape.n_layer);
  weights.Adopt("model.n_head", &m.n_head, shape.n_head);
  weights.Adopt("model.n_kv_head", &m.n_kv_head, shape.n_kv_head, true);
  weights.Adopt("model.head_dim", &m.head_dim, shape.head_dim, true);
  weights.Adopt("model.n_embd", &m.n_embd, shape.n_embd);
  weights.Adopt("model.n_inner", &m.n_inner, shape.n_inner, true);
  AdoptKinds(weights, shape, &m);
  if (m.vocab_size != 0) weights.Adopt("model.vocab_size", &m.vocab_size, shape.vocab_size);
  if (m.block_size > shape.block_size) {
    if (options.IsWritten("model.block_size")) {
      options.Fail({"model.block_size"},
                   StrCat(options.Describe("model.block_size"), ", but the weights of ", path,
                          " have positions for ", shape.block_size, " tokens"));
    }
    m.block_size = shape.block_size;
  }
  AdoptMixture(weights, shape, &m);
  shape.dropout = m.dropout;
  shape.lora = config->lora;
  // A checkpoint has its adapters itself.
  const std::string from = PeftAdapter::Exists(path) ? path : config->lora.init_from;
  if (!from.empty()) CheckGoesOn(options, PeftAdapter::Open(from), config->lora);
  if (!config->lora.init_from.empty()) {
    const PeftConfig adapter = PeftAdapter::Open(from).config();
    shape.lora = {.rank = adapter.rank,
                  .alpha = adapter.alpha,
                  .dropout = config->lora.dropout,
                  .targets = "those of " + from,
                  .rank_stabilized = adapter.rank_stabilized,
                  .init_from = from,
                  .base = config->lora.base};
  }
  if (const nn::MixtureOptions& x = shape.mixture; x.n_expert > 0) {
    const bool sigmoid = x.router.score == RouterScore::kSigmoid;
    const auto keep = [&](const char* key, double* option, double value) {
      if (!options.IsWritten(key)) *option = value;
    };
    if (!sigmoid) keep("model.balance_loss", &m.balance_loss, x.balance_loss);
    keep("model.z_loss", &m.z_loss, x.z_loss);
    if (sigmoid) keep("model.bias_rate", &m.bias_rate, x.bias_rate);
    SetCoefficients(m, &shape.mixture);
  }
  return shape;
}

}  // namespace lockstep::models
