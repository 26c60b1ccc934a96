// Hugging Face's names and files of models: round trips of every family, the family that follows
// from a model's parts, and GPT-2's names, shapes and errors.
#include "models/gpt/hf/hf_format.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "tests/message_of.h"
#include "tests/models/hf/hf_models.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using testing::HasSubstr;

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
                    With(kSmall, [](GptConfig& c) { c.activation = nn::MlpActivation::kRelu2; }),
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
        With(kLlama, [](GptConfig& c) { c.norm_weight = false; }),
        With(kLlama, [](GptConfig& c) { c.embed_norm = true; }),
        With(kLlama, [](GptConfig& c) { c.embed_mix = true; }),
        With(kLlama, [](GptConfig& c) { c.value_embed = true; }), With(kLlama, [](GptConfig& c) {
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
  EXPECT_THAT(with("\"n_head\": 2", "\"n_head\": 18446744073709551615"),
              HasSubstr("config.json: \"n_head\" must be an integer of 64 bits"));
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
