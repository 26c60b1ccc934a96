// Hugging Face's names and files of Llama and of those that descend from it, Qwen3 and Mixtral:
// published configurations, names and shapes, and errors.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "models/gpt/hf/hf_format.h"
#include "tests/message_of.h"
#include "tests/models/hf/hf_models.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using testing::HasSubstr;

// The fields of Qwen/Qwen3-30B-A3B's config.json.
constexpr char kQwen3Moe[] = R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
    "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
    "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
    "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
    "vocab_size": 151936})";

TEST(HfFormat, ReadsQwen3sPublishedConfigs) {
  GptConfig expected{
      .vocab_size = 151936,
      .block_size = 40960,
      .n_layer = 48,
      .n_head = 32,
      .n_embd = 2048,
      .bias = false,
      .tie_embeddings = false,
      .n_kv_head = 4,
      .head_dim = 128,
      .qk_norm = nn::QkNorm::kHead,
      .n_inner = 6144,
      .norm = NormKind::kRmsNorm,
      .norm_eps = 1e-6,
      .activation = nn::MlpActivation::kSwiGlu,
      .position = Position::kRope,
      .rope = {.theta = 1e6},
      .mixture = {.n_expert = 128, .n_expert_used = 8, .n_inner = 768, .balance_loss = 0.001}};
  EXPECT_EQ(FromHfConfig(kQwen3Moe, "config.json"), expected);
  // Qwen/Qwen3-0.6B's.
  expected.n_layer = 28;
  expected.n_head = 16;
  expected.n_kv_head = 8;
  expected.n_embd = 1024;
  expected.n_inner = 3072;
  expected.tie_embeddings = true;
  expected.mixture = {};
  EXPECT_EQ(FromHfConfig(R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
      "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
      "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
      "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
      "use_sliding_window": false, "vocab_size": 151936})",
                         "config.json"),
            expected);
  // What a config.json leaves out is as in transformers.
  const std::string sizes = R"("hidden_size": 64, "intermediate_size": 32,
      "num_attention_heads": 32, "num_hidden_layers": 2, "vocab_size": 50})";
  const GptConfig dense = FromHfConfig("{\"model_type\": \"qwen3\", " + sizes, "config.json");
  EXPECT_EQ(dense.block_size, 32768);
  EXPECT_EQ(dense.n_kv_head, 32);
  EXPECT_EQ(dense.head_dim, 128);
  EXPECT_EQ(dense.norm_eps, 1e-6);
  EXPECT_EQ(dense.rope.theta, 1e4);
  const GptConfig moe = FromHfConfig("{\"model_type\": \"qwen3_moe\", " + sizes, "config.json");
  EXPECT_EQ(moe.n_kv_head, 4);
  EXPECT_EQ(moe.head_dim, 2);
  EXPECT_EQ(moe.mixture, (nn::MixtureOptions{.n_expert = 128,
                                             .n_expert_used = 8,
                                             .n_inner = 768,
                                             .router = {.normalise = false},
                                             .balance_loss = 0.001}));
}

TEST(HfFormat, NamesWhatQwen3sHaveAndOursLack) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = kQwen3Moe;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    return MessageOf<Error>([&] { FromHfConfig(text, "config.json"); });
  };
  EXPECT_EQ(with("{", "{"), "no error");
  EXPECT_EQ(with("\"mlp_only_layers\": []", "\"mlp_only_layers\": [0, 1]"), "no error");
  EXPECT_EQ(with("\"num_experts\"", "\"num_local_experts\""), "no error");
  EXPECT_THAT(with("\"mlp_only_layers\": []", "\"mlp_only_layers\": [0, 5]"),
              HasSubstr("\"mlp_only_layers\" is [0,5]; only the first layers, as in [0,1], are "
                        "supported"));
  EXPECT_THAT(with("\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2"),
              HasSubstr("\"decoder_sparse_step\" is 2; only 1 is supported"));
  EXPECT_THAT(with("\"attention_bias\": false", "\"attention_bias\": true"),
              HasSubstr("\"attention_bias\" is true; only false is supported"));
  EXPECT_THAT(with("\"use_sliding_window\": false", "\"use_sliding_window\": true"),
              HasSubstr("\"use_sliding_window\" is true; only false is supported"));
  EXPECT_THAT(with("\"use_cache\": true", "\"layer_types\": [\"sliding_attention\"]"),
              HasSubstr("\"layer_types\" must have an entry for each layer"));
  EXPECT_THAT(with("\"head_dim\": 128", "\"head_dim\": 127"),
              HasSubstr("the size of a head must be even, got 127"));
  EXPECT_THAT(with("\"norm_topk_prob\": true", "\"norm_topk_prob\": 1"),
              HasSubstr("\"norm_topk_prob\" must be true or false"));
  EXPECT_THAT(with("\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\"}"),
              HasSubstr("\"rope_type\" is \"yarn\""));
}

// The fields of mistralai/Mixtral-8x7B-v0.1's config.json.
TEST(HfFormat, ReadsMixtralsPublishedConfig) {
  const std::string text = R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
    "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true,
    "vocab_size": 32000})";
  const GptConfig c = FromHfConfig(text, "config.json");
  EXPECT_EQ(HfModelType(c), "mixtral");
  EXPECT_EQ(c.mixture,
            (nn::MixtureOptions{
                .n_expert = 8, .n_expert_used = 2, .n_inner = 14336, .balance_loss = 0.02}));
  EXPECT_EQ(c.n_inner, 14336);
  EXPECT_EQ(c.rope.theta, 1e6);
  // What a config.json leaves out is as in transformers, and not as for a Llama.
  const GptConfig bare = FromHfConfig(R"({"model_type": "mixtral", "hidden_size": 64,
    "intermediate_size": 32, "num_attention_heads": 16, "num_hidden_layers": 2, "vocab_size": 50})",
                                      "config.json");
  EXPECT_EQ(bare.norm_eps, 1e-5);
  EXPECT_EQ(bare.rope.theta, 1e6);
  EXPECT_EQ(bare.block_size, 131072);
  EXPECT_EQ(bare.n_kv_head, 8);
  std::string sliding = text;
  sliding.replace(sliding.find("\"sliding_window\": null"), 22, "\"sliding_window\": 4096");
  EXPECT_EQ(FromHfConfig(sliding, "config.json").window, 4096);
}

// Linear weights are [out, in]; joint products are separate in the file.
TEST(HfFormat, HasTheNamesAndShapesOfLlama) {
  const auto shapes = [](const GptConfig& config) {
    Gpt model(config);
    model.Materialize(kCpu, 1);
    std::map<std::string, std::vector<int64_t>> out;
    for (const SafetensorsItem& item : ToHfTensors(model)) out[item.name] = item.shape;
    return out;
  };
  GptConfig config = kLlama;
  config.n_layer = 1;
  std::map<std::string, std::vector<int64_t>> expected = {
      {"model.embed_tokens.weight", {11, 16}},
      {"model.layers.0.input_layernorm.weight", {16}},
      {"model.layers.0.self_attn.q_proj.weight", {16, 16}},
      {"model.layers.0.self_attn.k_proj.weight", {8, 16}},
      {"model.layers.0.self_attn.v_proj.weight", {8, 16}},
      {"model.layers.0.self_attn.o_proj.weight", {16, 16}},
      {"model.layers.0.post_attention_layernorm.weight", {16}},
      {"model.layers.0.mlp.gate_proj.weight", {12, 16}},
      {"model.layers.0.mlp.up_proj.weight", {12, 16}},
      {"model.layers.0.mlp.down_proj.weight", {16, 12}},
      {"model.norm.weight", {16}},
      {"lm_head.weight", {11, 16}}};
  EXPECT_EQ(shapes(config), expected);
  config.tie_embeddings = config.bias = true;
  expected.erase("lm_head.weight");
  for (const auto& [layer, size] : std::map<std::string, int64_t>{{"self_attn.q_proj", 16},
                                                                  {"self_attn.k_proj", 8},
                                                                  {"self_attn.v_proj", 8},
                                                                  {"self_attn.o_proj", 16},
                                                                  {"mlp.gate_proj", 12},
                                                                  {"mlp.up_proj", 12},
                                                                  {"mlp.down_proj", 16}}) {
    expected["model.layers.0." + layer + ".bias"] = {size};
  }
  EXPECT_EQ(shapes(config), expected);
}

TEST(HfFormat, HasTheNamesAndShapesOfQwen3) {
  GptConfig config = Qwen3();
  config.mixture = {.n_expert = 2, .n_expert_used = 1, .n_inner = 10};
  config.n_dense = 1;
  Gpt model(config);
  model.Materialize(kCpu, 1);
  std::map<std::string, std::vector<int64_t>> shapes, expected;
  for (const SafetensorsItem& item : ToHfTensors(model)) shapes[item.name] = item.shape;
  const auto layer = [&](int i, const std::map<std::string, std::vector<int64_t>>& names) {
    for (const auto& [name, shape] : names) {
      expected[StrCat("model.layers.", i, ".", name, ".weight")] = shape;
    }
  };
  expected = {{"model.embed_tokens.weight", {11, 16}},
              {"model.norm.weight", {16}},
              {"lm_head.weight", {11, 16}}};
  for (const int i : {0, 1}) {
    layer(i, {{"input_layernorm", {16}},
              {"self_attn.q_proj", {24, 16}},
              {"self_attn.k_proj", {12, 16}},
              {"self_attn.v_proj", {12, 16}},
              {"self_attn.q_norm", {6}},
              {"self_attn.k_norm", {6}},
              {"self_attn.o_proj", {16, 24}},
              {"post_attention_layernorm", {16}}});
  }
  layer(0, {{"mlp.gate_proj", {12, 16}}, {"mlp.up_proj", {12, 16}}, {"mlp.down_proj", {16, 12}}});
  layer(1, {{"mlp.gate", {2, 16}},
            {"mlp.experts.0.gate_proj", {10, 16}},
            {"mlp.experts.0.up_proj", {10, 16}},
            {"mlp.experts.0.down_proj", {16, 10}},
            {"mlp.experts.1.gate_proj", {10, 16}},
            {"mlp.experts.1.up_proj", {10, 16}},
            {"mlp.experts.1.down_proj", {16, 10}}});
  EXPECT_EQ(shapes, expected);
}

// Rewrites a folder's weights.
void Rewrite(const std::string& folder, const std::function<void(SafetensorsItem&)>& change,
             const std::vector<SafetensorsItem>& more = {}) {
  const std::string bytes = ReadFile(folder + "/model.safetensors");
  const SafetensorsFile file =
      SafetensorsFile::Parse(std::as_bytes(std::span(bytes)), "model.safetensors");
  std::vector<SafetensorsItem> items;
  for (const SafetensorsEntry& entry : file.entries()) {
    items.push_back(SafetensorsItem::Of(entry.name, entry.ToTensor()));
    change(items.back());
  }
  items.insert(items.end(), more.begin(), more.end());
  FileWriter out(folder + "/model.safetensors");
  WriteSafetensors(out, items);
  out.Close();
}

std::string LoadError(const GptConfig& config, const std::string& folder) {
  return MessageOf<Error>([&] {
    Gpt model(config);
    model.Materialize(kCpu, 1);
    LoadHfWeights(model, folder);
  });
}

TEST(HfFormat, ReadsLlamasWithOrWithoutPrefixAndTheirOldBuffers) {
  const std::string folder = Folder("llama_names");
  GptConfig tied = kLlama;
  tied.tie_embeddings = true;
  Gpt saved(tied);
  saved.Materialize(kCpu, 5);
  Save(saved, folder);
  const Tensor wte = saved.NamedParameters()[0].second->value().Detach();
  const std::string buffer = "layers.0.self_attn.rotary_emb.inv_freq";
  Rewrite(folder, [](SafetensorsItem& item) { item.name = item.name.substr(sizeof "model." - 1); },
          {SafetensorsItem::Of(buffer, Tensor::Zeros({2}, DType::kF32)),
           SafetensorsItem::Of("lm_head.weight", wte)});
  EXPECT_EQ(LoadError(tied, folder), "no error");
  EXPECT_THAT(LoadError(kLlama, folder), "no error") << "an untied head may have any weights";
  Rewrite(folder, [](SafetensorsItem& item) {
    if (item.name == "norm.weight") item.name = "normal.weight";
  });
  EXPECT_THAT(LoadError(tied, folder),
              HasSubstr("weights of this model are missing: model.norm.weight"));
  Rewrite(
      folder,
      [](SafetensorsItem& item) {
        if (item.name == "normal.weight") item.name = "norm.weight";
      },
      {SafetensorsItem::Of("layers.0.self_attn.q_norm.weight", Tensor::Zeros({2}, DType::kF32))});
  EXPECT_THAT(LoadError(tied, folder),
              HasSubstr("for these weights: layers.0.self_attn.q_norm.weight"));
}

TEST(HfFormat, RefusesAHeadThatIsNotTheTiedEmbedding) {
  const std::string folder = Folder("untied_head");
  Gpt saved(kLlama);
  saved.Materialize(kCpu, 5);
  Save(saved, folder);
  GptConfig tied = kLlama;
  tied.tie_embeddings = true;
  EXPECT_THAT(LoadError(tied, folder),
              HasSubstr("'lm_head.weight' is not the token embedding; set "
                        "\"tie_word_embeddings\" to false in config.json"));
  GptConfig fewer_keys = kLlama;
  fewer_keys.n_kv_head = 1;
  EXPECT_THAT(LoadError(fewer_keys, folder),
              HasSubstr("'model.layers.0.self_attn.k_proj.weight' has shape [8, 16], but this "
                        "model needs [4, 16]"));
}

// The fields of meta-llama/Llama-3.2-1B's and TinyLlama/TinyLlama-1.1B-Chat-v1.0's config.json.
TEST(HfFormat, ReadsPublishedLlamaConfigs) {
  const std::string llama32 = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
      "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "use_cache": true, "vocab_size": 128256})";
  GptConfig expected{.vocab_size = 128256,
                     .block_size = 131072,
                     .n_layer = 16,
                     .n_head = 32,
                     .n_embd = 2048,
                     .bias = false,
                     .tie_embeddings = true,
                     .n_kv_head = 8,
                     .head_dim = 64,
                     .n_inner = 8192,
                     .norm = NormKind::kRmsNorm,
                     .norm_eps = 1e-5,
                     .activation = nn::MlpActivation::kSwiGlu,
                     .position = Position::kRope,
                     .rope = {.theta = 5e5,
                              .scaling = RotaryScaling::kLlama3,
                              .factor = 32,
                              .low = 1,
                              .high = 4,
                              .original_length = 8192}};
  EXPECT_EQ(FromHfConfig(llama32, "config.json"), expected);
  // As transformers 5 writes it.
  std::string newer = llama32;
  newer.replace(newer.find("\"rope_theta\": 500000.0,"), 23, "");
  newer.replace(newer.find("\"rope_scaling\": {"), 17,
                "\"rope_parameters\": {\"rope_theta\": 5e5,");
  EXPECT_EQ(FromHfConfig(newer, "config.json"), expected);
  // Where a folder has both, the older name counts, and of the other not even theta.
  std::string both = llama32;
  both.replace(
      both.find("\"rope_theta\": 500000.0,"), 23,
      R"("rope_theta": 500000.0, "rope_parameters": {"rope_theta": 7.0, "rope_type": "default"},)");
  EXPECT_EQ(FromHfConfig(both, "config.json"), expected);

  const std::string tiny = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 2048,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 22,
    "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.35.0", "use_cache": true, "vocab_size": 32000})";
  expected.vocab_size = 32000;
  expected.block_size = 2048;
  expected.n_layer = 22;
  expected.tie_embeddings = false;
  expected.n_kv_head = 4;
  expected.n_inner = 5632;
  expected.rope = {};
  EXPECT_EQ(FromHfConfig(tiny, "config.json"), expected);
}

TEST(HfFormat, NamesTheFieldOfABadLlamaConfig) {
  const std::string good = ToHfConfig(kLlama);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), from.size(), to);
    return MessageOf<Error>([&] { FromHfConfig(text, "config.json"); });
  };
  EXPECT_EQ(with("{", "{"), "no error");
  EXPECT_THAT(with("\"llama\"", "\"phi3\""),
              HasSubstr("config.json: \"model_type\" is \"phi3\"; supported are gpt2, llama"));
  EXPECT_THAT(with("\"silu\"", "\"gelu\""),
              HasSubstr("\"hidden_act\" is \"gelu\"; only \"silu\" is supported"));
  EXPECT_THAT(with("\"head_dim\": 4", "\"head_dim\": 5"),
              HasSubstr("the size of a head must be even, got 5"));
  EXPECT_THAT(with("\"head_dim\": 4", "\"head_dim\": -4"), HasSubstr("head_dim must be positive"));
  EXPECT_THAT(with("\"mlp_bias\": false", "\"mlp_bias\": true"),
              HasSubstr("\"attention_bias\" is false, but \"mlp_bias\" is true; only equal ones"));
  EXPECT_THAT(with("\"attention_bias\": false", "\"attention_bias\": true"),
              HasSubstr("\"attention_bias\" is true, but \"mlp_bias\" is false; only equal ones"));
  EXPECT_THAT(with("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"),
              HasSubstr("n_head = 4 is not divisible by n_kv_head = 3"));
  EXPECT_THAT(with("\"hidden_size\": 16", "\"hidden_size\": true"),
              HasSubstr("\"hidden_size\" must be an integer"));
  EXPECT_THAT(with("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": \"small\""),
              HasSubstr("\"rms_norm_eps\" must be a number"));
  EXPECT_THAT(with("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0"),
              HasSubstr("\"tie_word_embeddings\" must be true or false"));
  EXPECT_THAT(with("\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\"}"),
              HasSubstr("\"rope_scaling\": \"rope_type\" is \"yarn\"; supported are default, "
                        "linear, llama3"));
  EXPECT_THAT(with("\"rope_scaling\": null", "\"rope_scaling\": 2"),
              HasSubstr("\"rope_scaling\" must be an object"));
  EXPECT_THAT(with("\"rope_theta\": 10000.0", "\"rope_theta\": 0"),
              HasSubstr("theta must be positive, got 0"));
  EXPECT_THAT(with("\"num_attention_heads\": 4", "\"num_attention_heads\": 0"),
              HasSubstr("n_head must be positive"));
}

}  // namespace
}  // namespace lockstep::models
