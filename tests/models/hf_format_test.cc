#include "models/gpt/hf/hf_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "tests/message_of.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using testing::HasSubstr;

constexpr GptConfig kSmall{
    .vocab_size = 11, .block_size = 6, .n_layer = 2, .n_head = 2, .n_embd = 8};

constexpr GptConfig kLlama{.vocab_size = 11,
                           .block_size = 6,
                           .n_layer = 2,
                           .n_head = 4,
                           .n_embd = 16,
                           .bias = false,
                           .tie_embeddings = false,
                           .n_kv_head = 2,
                           .n_inner = 12,
                           .norm = NormKind::kRmsNorm,
                           .norm_eps = 1e-6,
                           .activation = nn::MlpActivation::kSwiGlu,
                           .position = Position::kRope,
                           .init_std = 0.3};

GptConfig With(GptConfig config, const std::function<void(GptConfig&)>& change) {
  change(config);
  return config;
}

std::string Folder(const std::string& name) {
  const std::string path = JoinPath(testing::TempDir(), name);
  MakeDirectories(path);
  return path;
}

void Save(Gpt& model, const std::string& folder) {
  FileWriter out(folder + "/model.safetensors");
  WriteSafetensors(out, ToHfTensors(model));
  out.Close();
  WriteFileAtomically(folder + "/config.json", ToHfConfig(model.config()));
}

class HfRoundTrip : public testing::TestWithParam<GptConfig> {};

TEST_P(HfRoundTrip, GivesTheSameModel) {
  const std::string folder = Folder("round_trip");
  Gpt saved(GetParam());
  saved.Materialize(kCpu, 5);
  Save(saved, folder);
  EXPECT_EQ(ReadHfConfig(folder), Resolved(GetParam()));
  Gpt loaded(ReadHfConfig(folder));
  loaded.Materialize(kCpu, 6);
  LoadHfWeights(loaded, folder);
  const auto a = saved.NamedParameters(), b = loaded.NamedParameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_EQ(a[i].second->value().ToVector<float>(), b[i].second->value().ToVector<float>());
  }
}

TEST_P(HfRoundTrip, KeepsTheLogits) {
  const std::string folder = Folder("round_trip_logits");
  Gpt saved(GetParam());
  saved.Materialize(kCpu, 5);
  Save(saved, folder);
  Gpt loaded(ReadHfConfig(folder));
  loaded.Materialize(kCpu, 6);
  LoadHfWeights(loaded, folder);
  const Tensor ids = Tensor::FromVector<int32_t>({1, 7, 3, 3, 10}, {1, 5});
  EXPECT_EQ(saved(ids).ToVector<float>(), loaded(ids).ToVector<float>());
}

INSTANTIATE_TEST_SUITE_P(All, HfRoundTrip,
                         testing::Values(kSmall,
                                         GptConfig{.vocab_size = 11,
                                                   .block_size = 6,
                                                   .n_layer = 1,
                                                   .n_head = 2,
                                                   .n_embd = 8,
                                                   .bias = false},
                                         GptConfig{.vocab_size = 11,
                                                   .block_size = 6,
                                                   .n_layer = 1,
                                                   .n_head = 2,
                                                   .n_embd = 8,
                                                   .tie_embeddings = false}));

INSTANTIATE_TEST_SUITE_P(
    Gpt2Variants, HfRoundTrip,
    testing::Values(With(kSmall,
                         [](GptConfig& c) { c.activation = nn::MlpActivation::kGeluExact; }),
                    With(kSmall, [](GptConfig& c) { c.activation = nn::MlpActivation::kRelu; }),
                    With(kSmall, [](GptConfig& c) { c.activation = nn::MlpActivation::kSilu; }),
                    With(kSmall, [](GptConfig& c) {
                      c.n_inner = 20, c.norm_eps = 1e-6, c.init_std = 0.1, c.dropout = 0.25;
                    })));

INSTANTIATE_TEST_SUITE_P(
    Llama, HfRoundTrip,
    testing::Values(kLlama,
                    With(kLlama,
                         [](GptConfig& c) { c.bias = c.tie_embeddings = true, c.dropout = 0.25; }),
                    With(kLlama, [](GptConfig& c) { c.n_kv_head = 4, c.n_inner = 0; }),
                    With(kLlama,
                         [](GptConfig& c) {
                           c.rope = {.theta = 5e5, .scaling = RotaryScaling::kLinear, .factor = 3};
                         }),
                    With(kLlama, [](GptConfig& c) {
                      c.rope = {.theta = 5e5,
                                .scaling = RotaryScaling::kLlama3,
                                .factor = 32,
                                .low = 1.5,
                                .high = 3,
                                .original_length = 5};
                    })));

constexpr nn::MixtureOptions kExperts{.n_expert = 3, .n_expert_used = 2, .n_inner = 12};

INSTANTIATE_TEST_SUITE_P(Experts, HfRoundTrip,
                         testing::Values(With(kLlama, [](GptConfig& c) { c.mixture = kExperts; }),
                                         With(kLlama,
                                              [](GptConfig& c) {
                                                c.mixture = {.n_expert = 4,
                                                             .n_expert_used = 1,
                                                             .n_inner = 12};
                                                c.mixture.balance_loss = 0.02;
                                                c.mixture.z_loss = 0.001;
                                                c.tie_embeddings = true;
                                              }),
                                         With(kSmall, [](GptConfig& c) { c.mixture = kExperts; }),
                                         With(kLlama, [](GptConfig& c) {
                                           c.mixture = kExperts;
                                           c.mixture.router = {.score = RouterScore::kSigmoid,
                                                               .scale = 2.5};
                                           c.mixture.bias_rate = 0.002;
                                           c.mixture.n_shared = 24;
                                           c.mixture.shared_gate = true;
                                           c.n_dense = 1;
                                         })));

constexpr GptConfig Qwen3() {
  GptConfig config = kLlama;
  config.head_dim = 6;
  config.qk_norm = nn::QkNorm::kHead;
  return config;
}

INSTANTIATE_TEST_SUITE_P(
    Qwen3, HfRoundTrip,
    testing::Values(Qwen3(), With(Qwen3(), [](GptConfig& c) { c.tie_embeddings = true; }),
                    With(Qwen3(), [](GptConfig& c) { c.n_embd = 14; }),
                    With(Qwen3(),
                         [](GptConfig& c) {
                           c.mixture = {.n_expert = 3, .n_expert_used = 2, .n_inner = 10};
                           c.mixture.balance_loss = 0.02;
                           c.mixture.z_loss = 0.001;
                         }),
                    With(Qwen3(),
                         [](GptConfig& c) {
                           c.mixture = kExperts;
                           c.mixture.router.normalise = false;
                           c.n_dense = 1;
                         }),
                    With(kLlama, [](GptConfig& c) { c.head_dim = 6; }),
                    With(kLlama, [](GptConfig& c) { c.mixture = kExperts, c.head_dim = 6; })));

// Neither GPT-2, Llama nor Qwen3.
INSTANTIATE_TEST_SUITE_P(
    Combinations, HfRoundTrip,
    testing::Values(
        With(kSmall, [](GptConfig& c) { c.n_kv_head = 1; }),
        With(kSmall, [](GptConfig& c) { c.head_dim = 5; }),
        With(kSmall, [](GptConfig& c) { c.qk_norm = nn::QkNorm::kHead; }),
        With(kLlama, [](GptConfig& c) { c.head_dim = 4, c.n_embd = 14; }),
        With(Qwen3(), [](GptConfig& c) { c.bias = true; }),
        With(kSmall, [](GptConfig& c) { c.norm = NormKind::kRmsNorm, c.bias = false; }),
        With(kSmall, [](GptConfig& c) { c.position = Position::kRope, c.rope.theta = 77; }),
        With(kSmall, [](GptConfig& c) { c.activation = nn::MlpActivation::kSwiGlu; }),
        With(kLlama, [](GptConfig& c) { c.activation = nn::MlpActivation::kGeluExact; }),
        With(kLlama, [](GptConfig& c) {
          c.rope = {.scaling = RotaryScaling::kLlama3, .factor = 2, .original_length = 9};
          c.norm = NormKind::kLayerNorm;
          c.dropout = 0.125;
        })));

TEST(HfFormat, FollowsFromTheModelsParts) {
  EXPECT_EQ(HfModelType(kSmall), "gpt2");
  EXPECT_EQ(HfModelType(With(kSmall, [](GptConfig& c) { c.n_kv_head = 2; })), "gpt2");
  EXPECT_EQ(HfModelType(kLlama), "llama");
  EXPECT_THAT(ToHfConfig(kSmall), HasSubstr("\"GPT2LMHeadModel\""));
  EXPECT_THAT(ToHfConfig(kLlama), HasSubstr("\"LlamaForCausalLM\""));
  const GptConfig combination = With(kSmall, [](GptConfig& c) { c.n_kv_head = 1; });
  EXPECT_EQ(HfModelType(combination), "lockstep");
  EXPECT_THAT(ToHfConfig(combination), HasSubstr("\"model_type\": \"lockstep\""));
  const GptConfig mixtral = With(kLlama, [](GptConfig& c) { c.mixture = kExperts; });
  EXPECT_EQ(HfModelType(mixtral), "mixtral");
  EXPECT_THAT(ToHfConfig(mixtral), HasSubstr("\"MixtralForCausalLM\""));
  const auto changed = [&](const std::function<void(GptConfig&)>& change) {
    return HfModelType(With(mixtral, change));
  };
  EXPECT_EQ(changed([](GptConfig& c) { c.bias = true; }), "lockstep");
  EXPECT_EQ(changed([](GptConfig& c) { c.n_dense = 1; }), "lockstep");
  EXPECT_EQ(changed([](GptConfig& c) { c.mixture.n_shared = 8; }), "lockstep");
  EXPECT_EQ(changed([](GptConfig& c) { c.mixture.n_inner = 16; }), "lockstep");
  EXPECT_EQ(changed([](GptConfig& c) { c.mixture.router.normalise = false; }), "lockstep");
  EXPECT_EQ(HfModelType(With(kSmall, [](GptConfig& c) { c.mixture = kExperts; })), "lockstep");
}

TEST(HfFormat, FollowsFromNormsOfQueriesAndKeys) {
  const auto format = [](const GptConfig& config, const std::function<void(GptConfig&)>& change) {
    return HfModelType(With(config, change));
  };
  const auto nothing = [](GptConfig&) {};
  EXPECT_EQ(format(Qwen3(), nothing), "qwen3");
  EXPECT_THAT(ToHfConfig(Qwen3()), HasSubstr("\"Qwen3ForCausalLM\""));
  EXPECT_EQ(format(Qwen3(), [](GptConfig& c) { c.bias = true; }), "lockstep");
  EXPECT_EQ(format(kLlama, [](GptConfig& c) { c.head_dim = 6; }), "llama");
  EXPECT_EQ(format(kSmall, [](GptConfig& c) { c.head_dim = 6; }), "lockstep");
  EXPECT_EQ(format(kSmall, [](GptConfig& c) { c.head_dim = 4; }), "gpt2");
  EXPECT_EQ(format(kSmall, [](GptConfig& c) { c.qk_norm = nn::QkNorm::kHead; }), "lockstep");
  const GptConfig moe = With(Qwen3(), [](GptConfig& c) {
    c.mixture = kExperts;
    c.mixture.n_inner = 10;
    c.n_dense = 1;
  });
  EXPECT_EQ(format(moe, nothing), "qwen3_moe");
  EXPECT_THAT(ToHfConfig(moe), HasSubstr("\"Qwen3MoeForCausalLM\""));
  EXPECT_EQ(format(moe, [](GptConfig& c) { c.mixture.router.normalise = false; }), "qwen3_moe");
  EXPECT_EQ(format(moe, [](GptConfig& c) { c.mixture.router.scale = 2; }), "lockstep");
  EXPECT_EQ(format(moe, [](GptConfig& c) { c.mixture.router.score = RouterScore::kSigmoid; }),
            "lockstep");
  EXPECT_EQ(format(moe, [](GptConfig& c) { c.mixture.n_shared = 8; }), "lockstep");
  EXPECT_EQ(format(moe, [](GptConfig& c) { c.bias = true; }), "lockstep");
}

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

// Conv1D stores [in, out], and always has a bias.
TEST(HfFormat, HasTheNamesAndShapesOfTransformers) {
  Gpt model(
      {.vocab_size = 11, .block_size = 6, .n_layer = 1, .n_head = 2, .n_embd = 8, .bias = false});
  model.Materialize(kCpu, 1);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const SafetensorsItem& item : ToHfTensors(model)) shapes[item.name] = item.shape;
  const std::map<std::string, std::vector<int64_t>> expected = {{"wte.weight", {11, 8}},
                                                                {"wpe.weight", {6, 8}},
                                                                {"h.0.ln_1.weight", {8}},
                                                                {"h.0.ln_1.bias", {8}},
                                                                {"h.0.attn.c_attn.weight", {8, 24}},
                                                                {"h.0.attn.c_attn.bias", {24}},
                                                                {"h.0.attn.c_proj.weight", {8, 8}},
                                                                {"h.0.attn.c_proj.bias", {8}},
                                                                {"h.0.ln_2.weight", {8}},
                                                                {"h.0.ln_2.bias", {8}},
                                                                {"h.0.mlp.c_fc.weight", {8, 32}},
                                                                {"h.0.mlp.c_fc.bias", {32}},
                                                                {"h.0.mlp.c_proj.weight", {32, 8}},
                                                                {"h.0.mlp.c_proj.bias", {8}},
                                                                {"ln_f.weight", {8}},
                                                                {"ln_f.bias", {8}}};
  EXPECT_EQ(shapes, expected);
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

TEST(HfFormat, RefusesWeightsOfAnotherModel) {
  const std::string folder = Folder("other_model");
  Gpt saved(kSmall);
  saved.Materialize(kCpu, 5);
  Save(saved, folder);
  const auto load = [&](GptConfig config) {
    return MessageOf<Error>([&] {
      Gpt model(config);
      model.Materialize(kCpu, 1);
      LoadHfWeights(model, folder);
    });
  };
  GptConfig wider = kSmall;
  wider.n_embd = 16;
  EXPECT_THAT(load(wider), HasSubstr("has shape [11, 8], but this model needs [11, 16]"));
  GptConfig deeper = kSmall;
  deeper.n_layer = 3;
  EXPECT_THAT(load(deeper), HasSubstr("weights of this model are missing: h.2.ln_1.weight"));
  GptConfig shallower = kSmall;
  shallower.n_layer = 1;
  EXPECT_THAT(load(shallower), HasSubstr("no parameters for these weights: h.1."));
}

TEST(HfFormat, RefusesBiasesThatTheModelLacks) {
  const std::string folder = Folder("biases");
  Gpt saved(kSmall);
  saved.Materialize(kCpu, 5);
  saved.NamedParameters()[3].second->value().Detach().Fill(1);
  ASSERT_EQ(saved.NamedParameters()[3].first, "h.0.ln_1.bias");
  Save(saved, folder);
  GptConfig config = kSmall;
  config.bias = false;
  Gpt model(config);
  model.Materialize(kCpu, 1);
  EXPECT_THAT(MessageOf<Error>([&] { LoadHfWeights(model, folder); }),
              HasSubstr("'h.0.ln_1.bias' is not zero, but the model has no biases"));
}

TEST(HfFormat, NamesTheFieldOfABadConfig) {
  const auto error = [](const std::string& json) {
    return MessageOf<Error>([&] { FromHfConfig(json, "config.json"); });
  };
  const std::string good = ToHfConfig(kSmall);
  EXPECT_EQ(error(good), "no error");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return error(text);
  };
  EXPECT_THAT(with("\"n_head\": 2", "\"n_head\": \"2\""),
              HasSubstr("config.json: \"n_head\" must be an integer"));
  EXPECT_THAT(with("\"n_head\": 2", "\"n_head\": 3"),
              HasSubstr("n_embd = 8 is not divisible by n_head = 3"));
  EXPECT_THAT(with("\"n_layer\": 2", "\"n_layer\": -2"), HasSubstr("n_layer must be positive"));
  EXPECT_THAT(with("\"gpt2\"", "\"opt\""),
              HasSubstr("\"model_type\" is \"opt\"; supported are gpt2, llama"));
  EXPECT_THAT(with("\"gpt2\"", "\"llama\""), HasSubstr("\"hidden_size\" must be an integer"));
  EXPECT_THAT(with("gelu_new", "mish"),
              HasSubstr("\"activation_function\" is \"mish\"; supported are gelu_new, "));
  EXPECT_THAT(with("{", "{\"is_causal\": false, "),
              HasSubstr("\"is_causal\" is false; only true is supported"));
  EXPECT_EQ(with("{", "{\"is_causal\": true, "), "no error");
  EXPECT_THAT(error("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error("{"), HasSubstr("config.json"));
}

TEST(HfFormat, HasTransformersDefaultForGpt2sDropout) {
  const GptConfig c = FromHfConfig(R"({"model_type": "gpt2", "vocab_size": 11, "n_positions": 6,
    "n_embd": 8, "n_layer": 1, "n_head": 2})",
                                   "config.json");
  EXPECT_EQ(c.dropout, 0.1);
  EXPECT_EQ(FromHfConfig(ToHfConfig(c), "config.json").dropout, 0.1);
}

}  // namespace
}  // namespace lockstep::models
