#include "models/train/model_shape.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/system/shell_word.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"
#include "models/gpt/peft/adapter.h"
#include "models/options/config_checks.h"

namespace lockstep::models {
namespace {

nn::MixtureOptions ToMixture(const ModelOptions& m) {
  if (m.n_expert == 0) return {};
  const nn::MlpActivation activation = ParseActivation(m.activation);
  const int64_t mlp = m.n_inner > 0 ? m.n_inner : DefaultInner(m.n_embd, activation);
  nn::MixtureOptions mixture{.n_expert = m.n_expert,
                             .n_expert_used = m.n_expert_used,
                             .n_inner = m.n_expert_inner > 0 ? m.n_expert_inner : mlp,
                             .shared_gate = m.shared_gate,
                             .router = ParseRouter(m.router)};
  mixture.n_shared = m.n_shared_expert * mixture.n_inner;
  mixture.router.scale = m.router_scale;
  SetCoefficients(m, &mixture);
  return mixture;
}

// The fields of a shape that have options of the same value.
template <class Options, class Shape, class F>
void ForEachEqual(Options& m, Shape& shape, const F& f) {
  f(m.n_layer, shape.n_layer);
  f(m.n_head, shape.n_head);
  f(m.n_embd, shape.n_embd);
  f(m.bias, shape.bias);
  f(m.tie_embeddings, shape.tie_embeddings);
  f(m.n_kv_head, shape.n_kv_head);
  f(m.head_dim, shape.head_dim);
  f(m.qkv_bias, shape.qkv_bias);
  f(m.value_embed, shape.value_embed);
  f(m.attn_scale, shape.attn_scale);
  f(m.attn_softcap, shape.attn_softcap);
  f(m.window, shape.window);
  f(m.window_pattern, shape.window_pattern);
  f(m.n_inner, shape.n_inner);
  f(m.norm_eps, shape.norm_eps);
  f(m.norm_offset, shape.norm_offset);
  f(m.norm_weight, shape.norm_weight);
  f(m.rope_theta, shape.rope.theta);
  f(m.rope_factor, shape.rope.factor);
  f(m.rope_low, shape.rope.low);
  f(m.rope_high, shape.rope.high);
  f(m.rope_original_length, shape.rope.original_length);
  f(m.rope_reverse, shape.rope.reverse);
  f(m.rope_local_theta, shape.rope_local_theta);
  f(m.rope_skip, shape.rope_skip);
  f(m.embed_scale, shape.embed_scale);
  f(m.embed_norm, shape.embed_norm);
  f(m.embed_mix, shape.embed_mix);
  f(m.logit_softcap, shape.logit_softcap);
}

}  // namespace

void SetCoefficients(const ModelOptions& m, nn::MixtureOptions* mixture) {
  const bool sigmoid = mixture->router.score == RouterScore::kSigmoid;
  mixture->balance_loss = sigmoid ? 0 : m.balance_loss;
  mixture->z_loss = m.z_loss;
  mixture->bias_rate = sigmoid ? m.bias_rate : 0;
}

GptConfig ToGptConfig(const ModelOptions& m) {
  GptConfig shape{
      .vocab_size = m.vocab_size,
      .block_size = m.block_size,
      .dropout = m.dropout,
      .qk_norm = ParseQkNorm(m.qk_norm),
      .norm = ParseNorm(m.norm),
      .norm_place = ParseNormPlace(m.norm_place),
      .activation = ParseActivation(m.activation),
      .position = ParsePosition(m.position),
      .init_std = m.init_std > 0 ? m.init_std : 1 / std::sqrt(static_cast<double>(m.n_embd)),
      .init_zero = m.init_zero,
      .mixture = ToMixture(m),
      .n_dense = m.n_dense};
  shape.rope.scaling = ParseRopeScaling(m.rope_scaling);
  ForEachEqual(m, shape, [](const auto& option, auto& field) { field = option; });
  return shape;
}

ModelOptions ToModelOptions(const GptConfig& shape, const ModelOptions& model) {
  ModelOptions m = model;
  ForEachEqual(m, shape, [](auto& option, const auto& field) { option = field; });
  if (m.vocab_size != 0) m.vocab_size = shape.vocab_size;
  m.qk_norm = Name(shape.qk_norm);
  m.norm = Name(shape.norm);
  m.norm_place = Name(shape.norm_place);
  m.activation = Name(shape.activation);
  m.position = Name(shape.position);
  m.rope_scaling = Name(shape.rope.scaling);
  const nn::MixtureOptions& mixture = shape.mixture;
  m.n_expert = mixture.n_expert;
  if (mixture.n_expert == 0) return m;
  m.n_expert_used = mixture.n_expert_used;
  m.n_expert_inner = mixture.n_inner;
  m.n_shared_expert = mixture.n_shared / mixture.n_inner;  // in units of an expert
  m.shared_gate = mixture.shared_gate;
  m.n_dense = shape.n_dense;
  m.router = RouterName(mixture.router);
  m.router_scale = mixture.router.scale;
  return m;
}

namespace {

struct ShapeOptions {
  explicit ShapeOptions(const ModelOptions& m) : model(m) { AddModelOptions(options, model); }

  ModelOptions model;
  Options options{{.name = "train_gpt", .summary = ""}};
};

// What a folder would say of a model of these options: it leaves out what has no effect, such as a
// window_pattern above n_layer. Nothing, if there can be no such model.
std::optional<ModelOptions> ReadBack(const ModelOptions& model, const GptConfig& weights) {
  try {
    GptConfig shape = ToGptConfig(model);
    shape.vocab_size = weights.vocab_size;
    shape.block_size = weights.block_size;
    Validate(shape);
    return ToModelOptions(FromHfConfig(ToHfConfig(shape), "model"), model);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Fails if the user asked for a model that differs from that of the weights, all of whose options
// `of_weights` are. 0 of what follows from other sizes is left to the weights.
void CheckAsked(const Options& options, const std::string& path, const GptConfig& weights,
                const ModelOptions& model, const ModelOptions& of_weights) {
  const std::set<std::string_view> sizes = {"model.n_kv_head", "model.head_dim", "model.n_inner",
                                            "model.n_expert_inner"};
  ShapeOptions asked(of_weights);
  std::vector<OptionDifference> differences;
  for (OptionDifference& d : Difference(ShapeOptions(model).options, asked.options)) {
    if (!options.IsWritten(d.key) || (d.a == "0" && sizes.contains(d.key))) continue;
    asked.options.Derive(d.key, options.value(d.key), d.key);
    differences.push_back(std::move(d));
  }
  if (differences.empty()) return;
  if (const auto same = ReadBack(asked.model, weights)) {
    const auto left = Difference(ShapeOptions(*same).options, ShapeOptions(of_weights).options);
    std::erase_if(differences, [&](const OptionDifference& d) {
      return std::ranges::none_of(left, [&](const auto& l) { return l.key == d.key; });
    });
    if (differences.empty()) return;
  }
  const OptionDifference& d = differences.front();
  options.Fail({d.key}, StrCat(options.Describe(d.key), ", but the weights of ", path, " have ",
                               d.b, ": leave ", d.key, " out"));
}

// The options have widths of shared experts in units of an expert's.
void CheckSharedExperts(const Options& options, const std::string& path,
                        const nn::MixtureOptions& x) {
  if (x.n_expert == 0 || x.n_shared % x.n_inner == 0) return;
  if (!options.IsWritten("model.n_shared_expert")) return;
  options.Fail(StrCat("{model.n_shared_expert}, but the shared expert of ", path, " is ",
                      x.n_shared, " wide, no multiple of the ", x.n_inner,
                      " of an expert: leave model.n_shared_expert out"));
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
                        ShellWord(adapter.folder()), " --out=merged)"));
  }
  if (!has_own && adapter.config().rank_pattern.empty() && lora.rank != adapter.config().rank) {
    options.Fail(StrCat("{lora.rank}, but the adapters of ", adapter.folder(), " have rank ",
                        adapter.config().rank, ": use lora.rank = ", adapter.config().rank));
  }
  const auto& saved = adapter.config().modules_to_save;
  if (!has_own && !saved.empty() && lora.modules_to_save.empty()) {
    std::string list;
    for (const std::string& module : saved) list += StrCat(list.empty() ? "" : ",", module);
    options.Fail({"lora.modules_to_save"},
                 StrCat("the adapters of ", adapter.folder(),
                        " were trained together with whole modules: use lora.modules_to_save = \"",
                        list, "\""));
  }
  const std::string kind = adapter.base_kind();
  if (kind.empty() || kind == lora.base) return;
  options.Fail(StrCat("{lora.base}, but the adapters of ", adapter.folder(),
                      " were trained on weights in 4 bits: use lora.base = \"", kind, "\""));
}

}  // namespace

GptConfig ShapeFromWeights(const Options& options, const std::string& path, RunConfig* config) {
  GptConfig shape = ReadHfConfig(WeightsOf(path));
  ModelOptions& m = config->model;
  CheckSharedExperts(options, path, shape.mixture);
  const ModelOptions of_weights = ToModelOptions(shape, m);
  CheckAsked(options, path, shape, m, of_weights);
  m = of_weights;
  if (m.block_size > shape.block_size) {
    if (options.IsWritten("model.block_size")) {
      options.Fail(StrCat("{model.block_size}, but the weights of ", path, " have positions for ",
                          shape.block_size, " tokens"));
    }
    m.block_size = shape.block_size;
  }
  CheckMixture(options, m, path);
  shape.dropout = m.dropout;
  shape.lora = config->lora;
  // A checkpoint has its adapters itself.
  const std::string& given = config->lora.init_from;
  const std::string from = PeftAdapter::Exists(path) ? path
                           : given.empty()           ? given
                                                     : CheckpointOf(given);
  if (!from.empty()) CheckGoesOn(options, PeftAdapter::Open(from, shape), config->lora);
  if (!config->lora.init_from.empty()) {
    const PeftConfig adapter = PeftAdapter::Open(from, shape).config();
    shape.lora = {.rank = adapter.rank,
                  .alpha = adapter.alpha,
                  .dropout = config->lora.dropout,
                  .targets = "those of " + from,
                  .base = config->lora.base,
                  .rank_stabilized = adapter.rank_stabilized,
                  .init_from = from};
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
