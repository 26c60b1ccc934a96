// GPT-2: Radford et al., "Language models are unsupervised multitask learners" (2019).
#include "models/gpt/hf/family.h"

namespace lockstep::models {
namespace {

struct ActivationWord {
  nn::MlpActivation activation;
  const char* word;
};
// The first word of an activation is the one to write.
constexpr ActivationWord kGpt2Activations[] = {
    {nn::MlpActivation::kGelu, "gelu_new"},  {nn::MlpActivation::kGelu, "gelu_pytorch_tanh"},
    {nn::MlpActivation::kGeluExact, "gelu"}, {nn::MlpActivation::kRelu, "relu"},
    {nn::MlpActivation::kRelu2, "relu2"},    {nn::MlpActivation::kSilu, "silu"},
    {nn::MlpActivation::kSilu, "swish"}};

nn::MlpActivation Gpt2Activation(const Fields& f) {
  const std::string word = f.Text("activation_function", "gelu_new");
  std::string all;
  for (const ActivationWord& a : kGpt2Activations) {
    if (word == a.word) return a.activation;
    all += StrCat(all.empty() ? "" : ", ", a.word);
  }
  f.Fail("activation_function", StrCat("is \"", word, "\"; supported are ", all));
}

OrderedJson Write(const GptConfig& c) {
  OrderedJson j;
  j["architectures"] = {"GPT2LMHeadModel"};
  j["model_type"] = "gpt2";
  j["vocab_size"] = c.vocab_size;
  j["n_positions"] = c.block_size;
  j["n_ctx"] = c.block_size;
  j["n_embd"] = c.n_embd;
  j["n_layer"] = c.n_layer;
  j["n_head"] = c.n_head;
  j["n_inner"] = c.n_inner == 4 * c.n_embd ? OrderedJson(nullptr) : OrderedJson(c.n_inner);
  for (const ActivationWord& a : kGpt2Activations) {
    if (a.activation != c.activation) continue;
    j["activation_function"] = a.word;
    break;
  }
  j["layer_norm_epsilon"] = c.norm_eps;
  j["initializer_range"] = c.init_std;
  j["resid_pdrop"] = c.dropout;
  j["embd_pdrop"] = c.dropout;
  j["attn_pdrop"] = c.dropout;
  j["tie_word_embeddings"] = c.tie_embeddings;
  // The defaults (50256) would lie outside small vocabularies.
  const bool gpt2_vocabulary = c.vocab_size >= 50257;
  j["bos_token_id"] = gpt2_vocabulary ? OrderedJson(50256) : OrderedJson(nullptr);
  j["eos_token_id"] = gpt2_vocabulary ? OrderedJson(50256) : OrderedJson(nullptr);
  j["lockstep"] = {{"bias", c.bias}};
  return j;
}

GptConfig Read(const Fields& f) {
  f.Expect("scale_attn_weights", true);
  f.Expect("scale_attn_by_inverse_layer_idx", false);
  f.Expect("add_cross_attention", false);
  GptConfig c;
  c.vocab_size = f.Integer("vocab_size");
  c.block_size = f.Integer(f.Has("n_positions")               ? "n_positions"
                           : f.Has("max_position_embeddings") ? "max_position_embeddings"
                                                              : "n_ctx");
  c.n_embd = f.Integer("n_embd");
  c.n_layer = f.Integer("n_layer");
  c.n_head = f.Integer("n_head");
  c.n_inner = f.Integer("n_inner", 0);
  c.activation = Gpt2Activation(f);
  c.norm_eps = f.Number("layer_norm_epsilon", 1e-5);
  c.init_std = f.Number("initializer_range", 0.02);
  // All three are one here; which differ does not matter, since a run takes model.dropout.
  c.dropout = f.Number("resid_pdrop", 0.1);
  c.tie_embeddings = f.Bool("tie_word_embeddings", true);
  c.bias = f.Object("lockstep").Bool("bias", true);
  return c;
}

}  // namespace

const HfFamily kHfGpt2 = {
    .model_type = "gpt2", .title = "GPT", .layout = HfLayout::kGpt2, .read = Read, .write = Write};

}  // namespace lockstep::models
