// The families of gpt/hf against transformers: tiny models have its logits and gradients, their
// folders are written back as they were, and what is not supported is refused by its name.
// tests/peers/make_family_parity.py made the goldens.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/engine.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "data/token_file.h"
#include "models/gpt/hf/hf_format.h"
#include "tests/message_of.h"

namespace lockstep::models {
namespace {
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kLength = 24;  // longer than the windows

std::string FolderOf(const std::string& family) { return "tests/testdata/" + family + "_parity"; }

std::vector<int32_t> Tokens(const std::string& folder, int64_t first) {
  std::vector<int32_t> ids(kLength);
  data::TokenFile(folder + "/tokens.bin").Read(first, ids);
  return ids;
}

std::unique_ptr<Gpt> Load(const std::string& folder, const GptConfig& config) {
  auto model = std::make_unique<Gpt>(config);
  model->Materialize(kCpu, 0);
  LoadHfWeights(*model, folder);
  return model;
}

std::vector<float> Logits(Gpt& model, const std::string& folder) {
  const NoGrad no_grad;
  return model(Tensor::FromVector(Tokens(folder, 0), {1, kLength})).ToVector<float>();
}

class HfFamilies : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  std::string Folder() const { return FolderOf(GetParam().first); }
};

TEST_P(HfFamilies, HaveTheLogitsOfTransformers) {
  const Json golden = Json::parse(ReadFile(Folder() + "/logits.json"));
  const auto model = Load(Folder(), ReadHfConfig(Folder()));
  const std::vector<float> ours = Logits(*model, Folder());
  const size_t classes = golden[0].size();
  ASSERT_EQ(ours.size(), golden.size() * classes);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_NEAR(ours[i], golden[i / classes][i % classes].get<double>(), 1e-5)
        << "position " << i / classes << ", id " << i % classes;
  }
}

// In chunks, so that a cap of the logits is that of the chunked loss.
TEST_P(HfFamilies, HaveTheGradientsOfTransformers) {
  GptConfig config = ReadHfConfig(Folder());
  config.loss_chunk = 7;
  const auto model = Load(Folder(), config);
  const Tensor loss = model->Loss(Tensor::FromVector(Tokens(Folder(), 0), {1, kLength}),
                                  Tensor::FromVector(Tokens(Folder(), 1), {1, kLength}));
  Backward(loss, Tensor::Full({}, 1.0 / kLength, DType::kF32));
  const SafetensorsSet golden = SafetensorsSet::Open(Folder() + "/gradients.safetensors");
  const auto items =
      ToHfTensors(*model, [](const std::string&, const Parameter& p) { return p.grad().Detach(); });
  ASSERT_EQ(items.size(), golden.names().size());
  for (const SafetensorsItem& item : items) {
    const SafetensorsEntry* entry = golden.Find(item.name);
    ASSERT_NE(entry, nullptr) << item.name;
    const std::vector<float> theirs = entry->ToTensor().ToVector<float>();
    const std::vector<float> ours = item.produce().Contiguous().ToVector<float>();
    ASSERT_EQ(ours.size(), theirs.size()) << item.name;
    double squares = 0, error = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      squares += double{theirs[i]} * theirs[i];
      error = std::max(error, std::abs(double{ours[i]} - theirs[i]));
    }
    EXPECT_GT(squares, 0) << item.name;
    EXPECT_LT(error, 1e-5 * std::sqrt(squares) + 1e-8) << item.name;
  }
}

TEST_P(HfFamilies, AreWrittenBackBitForBit) {
  const GptConfig config = ReadHfConfig(Folder());
  EXPECT_EQ(HfModelType(config), GetParam().second);
  const std::string written = ToHfConfig(config);
  EXPECT_EQ(FromHfConfig(written, "config.json"), config);
  EXPECT_THAT(written, HasSubstr(StrCat("\"model_type\": \"", GetParam().second, "\"")));
  const auto model = Load(Folder(), config);
  const std::string copy = JoinPath(testing::TempDir(), std::string(GetParam().first) + "_copy");
  RemoveTree(copy);
  WriteHfFolder(copy, written, ToHfTensors(*model), /*max_bytes=*/20000);
  EXPECT_TRUE(PathExists(copy + "/model.safetensors.index.json"));
  const SafetensorsSet before = SafetensorsSet::Open(Folder()), after = SafetensorsSet::Open(copy);
  ASSERT_EQ(after.names().size(), before.names().size());
  for (const std::string& name : before.names()) {
    const SafetensorsEntry *a = before.Find(name), *b = after.Find(name);
    ASSERT_NE(b, nullptr) << name;
    EXPECT_TRUE(std::ranges::equal(a->bytes, b->bytes)) << name;
  }
}

// Each option that the family sets changes the logits: none is ignored, and the goldens would show
// a wrong one.
TEST_P(HfFamilies, NeedEachOfTheirOptions) {
  const GptConfig config = ReadHfConfig(Folder());
  // Of the same widths.
  const GptConfig plain{.activation = nn::IsGated(config.activation) ? nn::MlpActivation::kSwiGlu
                                                                     : nn::MlpActivation::kGelu};
  const auto model = Load(Folder(), config);
  const std::vector<float> right = Logits(*model, Folder());
  const auto changed = [&](const char* option, auto field) {
    GptConfig other = config;
    other.*field = plain.*field;
    if (other == config) return 0;
    // Of the same parameters, loaded under their own names.
    Gpt wrong(other);
    wrong.Materialize(kCpu, 0);
    for (const auto& [name, p] : model->NamedParameters()) {
      for (const auto& [other_name, q] : wrong.NamedParameters()) {
        if (name == other_name) q->value().Detach().CopyFrom(p->value().Detach());
      }
    }
    const std::vector<float> logits = Logits(wrong, Folder());
    double most = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      most = std::max(most, std::abs(double{logits[i]} - right[i]));
    }
    EXPECT_GT(most, 1e-3) << option;
    return 1;
  };
  using C = GptConfig;
  int options = 0;
  options += changed("qkv_bias", &C::qkv_bias);
  options += changed("qk_norm", &C::qk_norm);
  options += changed("attn_scale", &C::attn_scale);
  options += changed("attn_softcap", &C::attn_softcap);
  options += changed("window", &C::window);
  options += changed("window_pattern", &C::window_pattern);
  options += changed("norm_offset", &C::norm_offset);
  options += changed("norm_place", &C::norm_place);
  options += changed("activation", &C::activation);
  options += changed("rope_local_theta", &C::rope_local_theta);
  options += changed("rope_skip", &C::rope_skip);
  options += changed("embed_scale", &C::embed_scale);
  options += changed("embed_norm", &C::embed_norm);
  if (config.rope.reverse) options += changed("rope", &C::rope);
  options += changed("logit_softcap", &C::logit_softcap);
  EXPECT_GT(options, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, HfFamilies,
    testing::Values(std::pair("qwen2", "qwen2"), std::pair("mistral", "mistral"),
                    std::pair("gemma2", "gemma2"), std::pair("gemma3", "gemma3_text"),
                    std::pair("olmo2", "olmo2"), std::pair("smollm3", "smollm3"),
                    std::pair("nanochat", "nanochat")),
    [](const auto& info) { return std::string(info.param.first); });

// ---- config.json as published, with the keys of transformers 4. ----

GptConfig Published(const char* text) { return FromHfConfig(text, "config.json"); }

TEST(HfFamilyConfigs, OfMistral01) {
  const GptConfig c = Published(R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32000})");
  EXPECT_EQ(c.window, 4096);
  EXPECT_EQ(c.window_pattern, 0);
  EXPECT_EQ(c.n_kv_head, 8);
  EXPECT_EQ(HfModelType(c), "mistral");
  const GptConfig without = Published(R"({"model_type": "mistral", "hidden_size": 64,
    "intermediate_size": 96, "num_attention_heads": 8, "num_hidden_layers": 2, "vocab_size": 50,
    "sliding_window": null})");
  EXPECT_EQ(without.window, 0);
  EXPECT_EQ(HfModelType(without), "llama");
}

TEST(HfFamilyConfigs, OfQwen25) {
  const GptConfig c = Published(R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
    "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
    "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
    "use_sliding_window": false, "vocab_size": 151936})");
  EXPECT_TRUE(c.qkv_bias);
  EXPECT_FALSE(c.bias);
  EXPECT_EQ(c.window, 0);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_TRUE(c.tie_embeddings);
}

TEST(HfFamilyConfigs, OfGemma2) {
  const GptConfig c = Published(R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
    "attn_logit_softcapping": 50.0, "eos_token_id": [1, 107], "final_logit_softcapping": 30.0,
    "head_dim": 128, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 4608, "initializer_range": 0.02, "intermediate_size": 36864,
    "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 32,
    "num_hidden_layers": 46, "num_key_value_heads": 16, "query_pre_attn_scalar": 144,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000})");
  EXPECT_EQ(c.attn_scale, 1.0 / 12);
  EXPECT_EQ(c.attn_softcap, 50);
  EXPECT_EQ(c.logit_softcap, 30);
  EXPECT_EQ(c.window, 4096);
  EXPECT_EQ(c.window_pattern, 2);
  EXPECT_TRUE(HasWindow(c, 0));
  EXPECT_FALSE(HasWindow(c, 1));
  EXPECT_TRUE(c.tie_embeddings);  // the class's default
  EXPECT_EQ(c.embed_scale, std::sqrt(4608.0));
  EXPECT_EQ(c.norm_offset, 1);
  EXPECT_EQ(HfModelType(c), "gemma2");
  EXPECT_EQ(FromHfConfig(ToHfConfig(c), "again"), c);
}

TEST(HfFamilyConfigs, OfGemma3WithKeysOfBothGenerations) {
  const std::string shape = R"("model_type": "gemma3_text", "head_dim": 256, "hidden_size": 2560,
    "intermediate_size": 10240, "num_attention_heads": 8, "num_hidden_layers": 34,
    "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "sliding_window": 1024, "vocab_size": 262208)";
  const GptConfig four = Published(StrCat(R"({"rope_theta": 1000000, "rope_local_base_freq": 10000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window_pattern": 6, )",
                                          shape, "}")
                                       .c_str());
  Json types = Json::array();
  for (int i = 0; i < 34; ++i) types.push_back(i % 6 == 5 ? "full_attention" : "sliding_attention");
  const GptConfig five = Published(StrCat(R"({"rope_parameters": {"full_attention":
    {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}, "sliding_attention":
    {"rope_type": "default", "rope_theta": 10000.0}}, "layer_types": )",
                                          types.dump(), ", ", shape, "}")
                                       .c_str());
  EXPECT_EQ(four, five);
  EXPECT_EQ(four.window_pattern, 6);
  EXPECT_EQ(four.rope.theta, 1e6);
  EXPECT_EQ(four.rope.factor, 8);
  EXPECT_EQ(four.rope_local_theta, 1e4);
  EXPECT_EQ(four.attn_scale, 0);  // that of head_dim
  EXPECT_EQ(four.qk_norm, nn::QkNorm::kHead);
}

TEST(HfFamilyConfigs, OfOlmo2AndSmolLm3) {
  const GptConfig olmo =
      Published(R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "model_type": "olmo2", "num_attention_heads": 16, "num_hidden_layers": 16,
    "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000,
    "tie_word_embeddings": false, "vocab_size": 100352})");
  EXPECT_EQ(olmo.qk_norm, nn::QkNorm::kFull);
  EXPECT_EQ(olmo.norm_place, nn::NormPlace::kPost);
  const GptConfig smol = Published(R"({"model_type": "smollm3", "hidden_size": 2048,
    "intermediate_size": 11008, "num_attention_heads": 16, "num_hidden_layers": 8,
    "num_key_value_heads": 4, "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0], "rope_theta": 5000000.0,
    "vocab_size": 128256, "layer_types": ["full_attention"]})");
  EXPECT_EQ(smol.rope_skip, 4);
  EXPECT_TRUE(smol.tie_embeddings);
  EXPECT_FALSE(HasRope(smol, 3));
  EXPECT_TRUE(HasRope(smol, 4));
}

// The length before it was extended is, where it is missing, the longest of now.
TEST(HfFamilyConfigs, ScaledRopeHasAnOriginalLength) {
  const auto length = [](const std::string& within, const std::string& beside) {
    return Published(StrCat(R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
      "num_attention_heads": 8, "num_hidden_layers": 1, "vocab_size": 50,
      "max_position_embeddings": 77, )",
                            beside, R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, )",
                            within, R"("low_freq_factor": 1.0, "high_freq_factor": 4.0}})")
                         .c_str())
        .rope.original_length;
  };
  const std::string key = "\"original_max_position_embeddings\": ";
  EXPECT_EQ(length("", ""), 77);
  EXPECT_EQ(length(key + "16, ", ""), 16);
  EXPECT_EQ(length(key + "16, ", key + "20, "), 20);
}

TEST(HfFamilyConfigs, Gemma3TakesBothPlacesOfRope) {
  const GptConfig c = Published(R"({"model_type": "gemma3_text", "hidden_size": 64,
    "intermediate_size": 96, "num_attention_heads": 8, "num_hidden_layers": 6, "vocab_size": 50,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"full_attention":
    {"rope_type": "default", "rope_theta": 300.0}, "sliding_attention": {"rope_theta": 50.0}}})");
  EXPECT_EQ(c.rope.theta, 300);
  EXPECT_EQ(c.rope.scaling, RotaryScaling::kLinear);
  EXPECT_EQ(c.rope_local_theta, 50);
}

TEST(HfFamilyConfigs, RefuseByNameWhatIsNotSupported) {
  const auto error = [](const std::string& type, const std::string& more) {
    const std::string text =
        StrCat(R"({"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8,
    "num_hidden_layers": 4, "vocab_size": 50, "model_type": ")",
               type, "\", ", more, "}");
    return test::MessageOf<InputError>([&] { FromHfConfig(text, "config.json"); });
  };
  EXPECT_THAT(error("qwen2", R"("use_sliding_window": true, "max_window_layers": 2)"),
              HasSubstr("config.json: \"max_window_layers\" is 2 of 4 layers; only 0"));
  EXPECT_THAT(error("gemma2", R"("hidden_activation": "relu")"),
              HasSubstr("\"hidden_activation\" is \"relu\"; only \"gelu_pytorch_tanh\""));
  EXPECT_THAT(error("gemma3_text", R"("use_bidirectional_attention": true)"),
              HasSubstr("\"use_bidirectional_attention\" is true"));
  EXPECT_THAT(error("gemma2", R"("layer_types": ["full_attention", "sliding_attention",
    "sliding_attention", "sliding_attention"])"),
              AllOf(HasSubstr("\"layer_types\" is ["), HasSubstr("in every n-th layer")));
  EXPECT_THAT(error("gemma2", R"("layer_types": ["chunked_attention", "a", "b", "c"])"),
              HasSubstr("\"layer_types\" has \"chunked_attention\""));
  EXPECT_THAT(error("gemma2", R"("query_pre_attn_scalar": 0)"),
              HasSubstr("\"query_pre_attn_scalar\" must be positive"));
  EXPECT_THAT(error("olmo2", R"("attention_bias": true)"), HasSubstr("\"attention_bias\" is true"));
  EXPECT_THAT(error("nanochat", R"("hidden_act": "silu")"),
              HasSubstr("\"hidden_act\" is \"silu\"; only \"relu2\""));
  EXPECT_THAT(error("smollm3", R"("no_rope_layers": [0, 1, 1, 1])"),
              HasSubstr("\"no_rope_layers\" is [0,1,1,1]; only a 0 for every n-th layer"));
  EXPECT_THAT(error("smollm3", R"("no_rope_layers": [1])"),
              HasSubstr("\"no_rope_layers\" must have an entry for each layer"));
  EXPECT_THAT(error("mistral", R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0})"),
              HasSubstr("\"rope_type\" is \"yarn\"; supported are default, linear, llama3"));
  EXPECT_THAT(error("gemma3_text", R"("attn_logit_softcapping": 50.0)"),
              HasSubstr("\"attn_logit_softcapping\" is 50.0"));
  EXPECT_THAT(error("gemma3_text", R"("rope_scaling": {"type": "linear", "factor": 2.0})"),
              HasSubstr("\"rope_scaling\": \"type\""));
  EXPECT_THAT(error("smollm3", R"("layer_types": ["sliding_attention", "full_attention",
    "full_attention", "full_attention"], "sliding_window": 5)"),
              HasSubstr("\"layer_types\""));
  for (const char* rope :
       {R"("partial_rotary_factor": 0.5)", R"("rope_scaling": {"partial_rotary_factor": 0.5})"}) {
    EXPECT_THAT(error("llama", rope), HasSubstr("\"partial_rotary_factor\" is 0.5"));
  }
  EXPECT_THAT(error("llama", R"("rope_scaling": {"rope_type": "linear"})"),
              HasSubstr("\"factor\" is missing"));
  EXPECT_THAT(error("llama", R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0,
    "high_freq_factor": 4.0})"),
              HasSubstr("\"low_freq_factor\" is missing"));
  EXPECT_THAT(error("phi3", R"("x": 1)"),
              AllOf(HasSubstr("\"model_type\" is \"phi3\"; supported are gpt2, llama"),
                    HasSubstr("nanochat and lockstep")));
}

// What transformers cannot load is written in the own format, with all of its options.
TEST(HfFamilyConfigs, CombinationsAreLockstepsOwn) {
  GptConfig c = ReadHfConfig(FolderOf("gemma3"));
  c.norm_place = nn::NormPlace::kPost;
  c.rope_skip = 2;
  c.logit_softcap = 3;
  c.attn_scale = 0.123;
  EXPECT_EQ(HfModelType(c), "lockstep");
  EXPECT_EQ(FromHfConfig(ToHfConfig(c), "config.json"), c);
}

}  // namespace
}  // namespace lockstep::models
