#include "models/gpt/gpt_config.h"

#include <array>
#include <utility>

#include "core/error.h"

namespace lockstep::models {
namespace {

template <class E, size_t n>
using Words = std::array<std::pair<E, std::string_view>, n>;

constexpr Words<NormKind, 2> kNorms{
    {{NormKind::kLayerNorm, "layer_norm"}, {NormKind::kRmsNorm, "rms_norm"}}};
constexpr Words<nn::MlpActivation, 7> kActivations{{{nn::MlpActivation::kGelu, "gelu"},
                                                    {nn::MlpActivation::kGeluExact, "gelu_exact"},
                                                    {nn::MlpActivation::kRelu, "relu"},
                                                    {nn::MlpActivation::kRelu2, "relu2"},
                                                    {nn::MlpActivation::kSilu, "silu"},
                                                    {nn::MlpActivation::kSwiGlu, "swiglu"},
                                                    {nn::MlpActivation::kGegluTanh, "geglu_tanh"}}};
constexpr Words<Position, 2> kPositions{
    {{Position::kLearned, "learned"}, {Position::kRope, "rope"}}};
constexpr Words<RotaryScaling, 3> kScalings{{{RotaryScaling::kNone, "none"},
                                             {RotaryScaling::kLinear, "linear"},
                                             {RotaryScaling::kLlama3, "llama3"}}};
constexpr Words<nn::QkNorm, 3> kQkNorms{
    {{nn::QkNorm::kNone, "none"}, {nn::QkNorm::kHead, "head"}, {nn::QkNorm::kFull, "full"}}};
constexpr Words<nn::NormPlace, 3> kNormPlaces{{{nn::NormPlace::kPre, "pre"},
                                               {nn::NormPlace::kPost, "post"},
                                               {nn::NormPlace::kSandwich, "sandwich"}}};

// What a router's word says of its scores and gates.
struct RouterWord {
  std::string_view word;
  RouterScore score;
  bool normalise;
};
constexpr std::array<RouterWord, 3> kRouters{{{"softmax", RouterScore::kSoftmax, true},
                                              {"softmax_all", RouterScore::kSoftmax, false},
                                              {"sigmoid", RouterScore::kSigmoid, true}}};

template <class E, size_t n>
std::string_view NameIn(const Words<E, n>& words, E value) {
  for (const auto& [e, word] : words) {
    if (e == value) return word;
  }
  throw ArgumentError(StrCat("no word for the value ", static_cast<int>(value)));
}

template <class E, size_t n>
E Parse(const char* what, const Words<E, n>& words, std::string_view name) {
  std::string all;
  for (const auto& [e, word] : words) {
    if (word == name) return e;
    all += StrCat(all.empty() ? "" : ", ", word);
  }
  throw ArgumentError(StrCat("the model's ", what, " is \"", name, "\"; it must be one of ", all));
}

}  // namespace

std::string_view Name(NormKind norm) { return NameIn(kNorms, norm); }
std::string_view Name(nn::MlpActivation activation) { return NameIn(kActivations, activation); }
std::string_view Name(Position position) { return NameIn(kPositions, position); }
std::string_view Name(RotaryScaling scaling) { return NameIn(kScalings, scaling); }
std::string_view Name(nn::QkNorm norm) { return NameIn(kQkNorms, norm); }
std::string_view Name(nn::NormPlace place) { return NameIn(kNormPlaces, place); }
NormKind ParseNorm(std::string_view name) { return Parse("norm", kNorms, name); }
nn::MlpActivation ParseActivation(std::string_view name) {
  return Parse("activation", kActivations, name);
}
Position ParsePosition(std::string_view name) { return Parse("position", kPositions, name); }
RotaryScaling ParseRopeScaling(std::string_view name) {
  return Parse("rope_scaling", kScalings, name);
}
nn::QkNorm ParseQkNorm(std::string_view name) { return Parse("qk_norm", kQkNorms, name); }
nn::NormPlace ParseNormPlace(std::string_view name) {
  return Parse("norm_place", kNormPlaces, name);
}
std::string_view RouterName(const RouterOptions& router) {
  for (const RouterWord& w : kRouters) {
    if (w.score == router.score && w.normalise == router.normalise) return w.word;
  }
  throw ArgumentError("a router with sigmoid scores normalises its gates: set normalise");
}
RouterOptions ParseRouter(std::string_view name) {
  for (const RouterWord& w : kRouters) {
    if (w.word == name) return {w.score, w.normalise};
  }
  throw ArgumentError(StrCat("the model's router is \"", name,
                             "\"; it must be one of softmax, softmax_all, sigmoid"));
}

bool HasWindow(const GptConfig& c, int64_t layer) {
  return c.window > 0 && (c.window_pattern == 0 || (layer + 1) % c.window_pattern != 0);
}

bool HasRope(const GptConfig& c, int64_t layer) {
  return c.position == Position::kRope && (c.rope_skip == 0 || (layer + 1) % c.rope_skip != 0);
}

bool HasValueEmbed(const GptConfig& c, int64_t layer) {
  return c.value_embed && (c.n_layer - 1 - layer) % 2 == 0;
}

bool IsValueEmbed(std::string_view parameter) { return parameter.ends_with("value_embed.weight"); }

int64_t DefaultInner(int64_t n_embd, nn::MlpActivation activation) {
  if (!nn::IsGated(activation)) return 4 * n_embd;
  return ((8 * n_embd + 2) / 3 + 63) / 64 * 64;
}

GptConfig Resolved(GptConfig c) {
  c.n_kv_head = c.key_heads();
  if (c.head_dim == 0 && c.n_head > 0) c.head_dim = c.n_embd / c.n_head;
  if (c.n_inner == 0) c.n_inner = DefaultInner(c.n_embd, c.activation);
  if (c.bias) c.qkv_bias = false;
  if (c.mixture.n_expert > 0 && c.mixture.n_inner == 0) c.mixture.n_inner = c.n_inner;
  return c;
}

namespace {

void ValidateMixture(const GptConfig& c) {
  const nn::MixtureOptions& m = c.mixture;
  LS_CHECK(m.n_expert >= 0, "the model's n_expert must not be negative, got ", m.n_expert);
  if (m.n_expert == 0) return;
  LS_CHECK(m.n_expert_used >= 1 && m.n_expert_used <= m.n_expert,
           "the model's n_expert_used = ", m.n_expert_used,
           " must be at least 1 and at most n_expert = ", m.n_expert);
  LS_CHECK(m.n_inner > 0 && m.n_shared >= 0, "the widths of the model's experts must be positive, ",
           "got ", m.n_inner, ", and of those that all tokens share ", m.n_shared);
  LS_CHECK(c.n_dense >= 0 && c.n_dense < c.n_layer, "the model's n_dense = ", c.n_dense,
           " must leave at least one of its ", c.n_layer, " layers to experts");
  LS_CHECK(m.router.scale > 0, "the scale of the model's router must be positive, got ",
           m.router.scale);
  RouterName(m.router);
}

void ValidateAttention(const GptConfig& c) {
  const auto none_or_more = [](const char* name, double value) {
    LS_CHECK(value >= 0 && value < 1e30, "the model's ", name,
             " must be a number and not negative (0: none), got ", value);
  };
  none_or_more("attn_scale", c.attn_scale);
  none_or_more("attn_softcap", c.attn_softcap);
  none_or_more("logit_softcap", c.logit_softcap);
  none_or_more("window", static_cast<double>(c.window));
  none_or_more("window_pattern", static_cast<double>(c.window_pattern));
  none_or_more("rope_local_theta", c.rope_local_theta);
  none_or_more("rope_skip", static_cast<double>(c.rope_skip));
}

}  // namespace

void Validate(const GptConfig& config) {
  const GptConfig c = Resolved(config);
  const auto positive = [](const char* name, int64_t value) {
    LS_CHECK(value > 0, "the model's ", name, " must be positive, got ", value);
  };
  positive("vocab_size", c.vocab_size);
  positive("block_size", c.block_size);
  positive("n_layer", c.n_layer);
  positive("n_head", c.n_head);
  positive("n_embd", c.n_embd);
  positive("n_kv_head", c.n_kv_head);
  positive("n_inner", c.n_inner);
  LS_CHECK(config.head_dim != 0 || c.n_embd % c.n_head == 0, "the model's n_embd = ", c.n_embd,
           " is not divisible by n_head = ", c.n_head, ": use a multiple, or set head_dim");
  positive("head_dim", c.head_dim);
  LS_CHECK(c.n_head % c.n_kv_head == 0, "the model's n_head = ", c.n_head,
           " is not divisible by n_kv_head = ", c.n_kv_head);
  LS_CHECK(c.dropout >= 0 && c.dropout < 1, "the model's dropout must be in [0, 1), got ",
           c.dropout);
  LS_CHECK(c.init_std >= 0, "the model's init_std must not be negative, got ", c.init_std);
  LS_CHECK(c.recompute.layers >= -1 && c.recompute.layers <= c.n_layer,
           "the model cannot recompute ", c.recompute.layers, " of ", c.n_layer, " layers");
  LS_CHECK(c.loss_chunk >= 0, "the model's loss_chunk must not be negative, got ", c.loss_chunk);
  LS_CHECK(c.z_loss >= 0, "the model's z_loss must not be negative, got ", c.z_loss);
  LS_CHECK(c.norm_eps > 0, "the model's norm_eps must be positive, got ", c.norm_eps);
  LS_CHECK(c.norm_offset == 0 || c.norm_offset == 1, "the model's norm_offset must be 0 or 1, got ",
           c.norm_offset);
  LS_CHECK(c.norm_weight || (c.norm == NormKind::kRmsNorm && c.norm_offset == 0),
           "the model's norm_weight = false, which needs norm = rms_norm and norm_offset = 0");
  LS_CHECK(c.embed_scale > 0 && c.embed_scale < 1e30,
           "the model's embed_scale must be positive, got ", c.embed_scale);
  LS_CHECK(c.embed_scale == 1 || c.position == Position::kRope,
           "the model's embed_scale = ", c.embed_scale,
           " would also have to scale the learned positions: use position = rope");
  ValidateAttention(c);
  ValidateMixture(c);
  if (c.position == Position::kRope) RotaryFrequencies(c.head_dim, c.rope);
}

}  // namespace lockstep::models
