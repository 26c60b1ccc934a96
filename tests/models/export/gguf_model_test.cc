// Tiny models of all families as GGUF, read back and mapped to Hugging Face's tensors.
#include "models/export/gguf_model.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "models/gpt/hf/hf_format.h"
#include "tests/message_of.h"
#include "tests/models/export/gguf_families.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {
using test::GgufFamily;
using test::GgufFile;
using test::HfTensorsByHand;
using testing::AllOf;
using testing::HasSubstr;

class GgufFamilies : public testing::TestWithParam<size_t> {
 protected:
  const GgufFamily& case_ = test::GgufFamilyCases()[GetParam()];
  const GptConfig config_ = test::ConfigOf(case_, case_.changes);
  const test::TempFolder scratch_{"gguf"};
  const std::string weights_ = test::WeightsOf(case_, config_, scratch_);
};

TEST_P(GgufFamilies, MapBackToHuggingFacesBits) {
  const GgufFile file = test::WriteFamily(config_, weights_, GgufType::kF32);
  EXPECT_EQ(file.Get<std::string>("general.architecture"), case_.architecture);
  const SafetensorsSet golden = SafetensorsSet::Open(weights_);
  const auto tensors = HfTensorsByHand(file, config_).All();
  EXPECT_EQ(tensors.size(), golden.names().size());
  for (const std::string& name : golden.names()) {
    const auto it = tensors.find(name);
    ASSERT_NE(it, tensors.end()) << name;
    EXPECT_EQ(it->second.shape, golden.Get(name).shape) << name;
    std::vector<float> want = golden.Get(name).ToTensor().To(DType::kF32).ToVector<float>();
    if (case_.architecture.starts_with("gemma") && name.ends_with("norm.weight")) {
      for (float& w : want) w += 1;
    }
    EXPECT_EQ(it->second.values, want) << name;
  }
}

TEST_P(GgufFamilies, HaveTheirSizes) {
  const GgufFile file = test::WriteFamily(config_, weights_, GgufType::kBF16);
  const auto number = [&](const std::string& key) {
    return int64_t{file.Get<uint32_t>(StrCat(case_.architecture, ".", key))};
  };
  EXPECT_EQ(file.Get<uint32_t>("general.file_type"), 32u);
  EXPECT_EQ(number("block_count"), config_.n_layer);
  EXPECT_EQ(number("context_length"), config_.block_size);
  EXPECT_EQ(number("embedding_length"), config_.n_embd);
  EXPECT_EQ(number("attention.head_count"), config_.n_head);
  EXPECT_EQ(number("attention.head_count_kv"), config_.n_kv_head);
  EXPECT_EQ(number("attention.key_length"), config_.head_dim);
  EXPECT_EQ(number("vocab_size"), 67);
  for (const auto& [name, t] : file.tensors) {
    const bool f32 = t.sizes.size() == 1 || name == "position_embd.weight" ||
                     name.ends_with("ffn_gate_inp.weight");
    EXPECT_EQ(t.type, f32 ? 0u : 30u) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamilies,
                         testing::Range(size_t{0}, test::GgufFamilyCases().size()),
                         [](const auto& info) {
                           return test::GgufFamilyCases()[info.param].family;
                         });

const GgufFamily& CaseOf(const std::string& family) {
  return *std::ranges::find(test::GgufFamilyCases(), family, &GgufFamily::family);
}

TEST(GgufModelTest, ScalesFrequenciesByATensor) {
  const GgufFamily& c = CaseOf("llama");
  const GptConfig config = test::ConfigOf(c, Json::object());
  const GgufFile file = test::WriteFamily(config, test::FolderOf(c), GgufType::kF32);
  const GgufFile::Tensor& t = file.tensors.at("rope_freqs.weight");
  // By the formula of Llama 3.1's code.
  std::vector<float> want;
  for (int i = 0; i < 4; ++i) {
    const double wavelength = 2 * M_PI * std::pow(100.0, 2 * i / 8.0);
    const double smooth = (31 / wavelength - 1.0) / (4.0 - 1.0);
    want.push_back(static_cast<float>(wavelength < 31 / 4.0   ? 1
                                      : wavelength > 31 / 1.0 ? 4
                                                              : 1 / ((1 - smooth) / 4 + smooth)));
  }
  EXPECT_THAT(want, testing::Contains(4.0F));
  EXPECT_THAT(want, testing::Contains(1.0F));
  EXPECT_THAT(t.Floats(), testing::Pointwise(testing::FloatEq(), want));
  EXPECT_FALSE(file.Has("llama.rope.scaling.type"));
  const GgufFamily& tied = CaseOf("llama_tied");
  const GgufFile linear =
      test::WriteFamily(test::ConfigOf(tied, Json::object()), test::FolderOf(tied), GgufType::kF32);
  EXPECT_EQ(linear.Get<std::string>("llama.rope.scaling.type"), "linear");
  EXPECT_EQ(linear.Get<float>("llama.rope.scaling.factor"), 2);
  EXPECT_FALSE(linear.tensors.contains("output.weight"));
}

TEST(GgufModelTest, SaysWhatGemmaIs) {
  const GgufFamily& c = CaseOf("gemma3");
  const GgufFile file =
      test::WriteFamily(test::ConfigOf(c, Json::object()), test::FolderOf(c), GgufType::kF32);
  EXPECT_EQ(file.Get<uint32_t>("gemma3.attention.sliding_window"), 5u);
  EXPECT_EQ(file.Get<uint32_t>("gemma3.attention.sliding_window_pattern"), 3u);
  EXPECT_EQ(file.Get<float>("gemma3.rope.freq_base"), 1000);
  EXPECT_EQ(file.Get<float>("gemma3.rope.freq_base_swa"), 50);
  EXPECT_EQ(file.Get<float>("gemma3.rope.scaling.factor"), 4);
  const GgufFamily& two = CaseOf("gemma2");
  const GptConfig config = test::ConfigOf(two, two.changes);
  const GgufFile file2 = test::WriteFamily(config, test::FolderOf(two), GgufType::kF32);
  EXPECT_EQ(file2.Get<float>("gemma2.attn_logit_softcapping"),
            static_cast<float>(config.attn_softcap));
  EXPECT_EQ(file2.Get<float>("gemma2.final_logit_softcapping"),
            static_cast<float>(config.logit_softcap));
}

// Matrices of 32 columns become blocks, others f16.
TEST(GgufModelTest, QuantizesWholeBlocks) {
  const GgufFamily& c = CaseOf("llama");
  const GgufFile file =
      test::WriteFamily(test::ConfigOf(c, Json::object()), test::FolderOf(c), GgufType::kQ8_0);
  EXPECT_EQ(file.Get<uint32_t>("general.file_type"), 7u);
  int quantized = 0, halves = 0;
  for (const auto& [name, t] : file.tensors) {
    if (t.sizes.size() == 1) continue;
    EXPECT_EQ(t.type, t.sizes[0] % 32 == 0 ? 8u : 1u) << name;
    ++(t.sizes[0] % 32 == 0 ? quantized : halves);
  }
  EXPECT_GT(quantized, 10);
  EXPECT_GT(halves, 0);
}

TEST(GgufModelTest, WritesATiedHeadWhereItMust) {
  const GgufFamily& c = CaseOf("olmo2");
  const GptConfig config = test::ConfigOf(c, {{"tie_word_embeddings", true}});
  Gpt model(config);
  model.Materialize(kCpu, 0);
  const GgufModel gguf = ToGguf(config, ToHfTensors(model), GgufType::kF32, "tiny");
  const test::TempFolder to("gguf");
  WriteGguf(to.Path("f"), gguf.metadata, gguf.tensors);
  const GgufFile file(to.Path("f"));
  EXPECT_EQ(file.tensors.at("output.weight").bytes, file.tensors.at("token_embd.weight").bytes);
}

TEST(GgufModelTest, RefusesByNameWhatLlamaCppCannotDo) {
  const auto refused = [](const std::string& family, const Json& changes) {
    return test::MessageOf<InputError>([&] {
      const GptConfig config = test::ConfigOf(CaseOf(family), changes);
      Gpt model(config);
      model.Materialize(kMeta, 0);
      ToGguf(config, ToHfTensors(model), GgufType::kF32, "tiny");
    });
  };
  EXPECT_THAT(refused("mistral", Json::object()),
              AllOf(HasSubstr("\"sliding_window\" cannot be written to GGUF"),
                    HasSubstr("at most 5"), HasSubstr("--format=hf")));
  EXPECT_EQ(refused("mistral", {{"max_position_embeddings", 5}}), "no error");
  EXPECT_THAT(refused("gemma2", Json::object()),
              AllOf(HasSubstr("\"query_pre_attn_scalar\""), HasSubstr("10^-1/2")));
  EXPECT_THAT(
      refused("gemma2", {{"query_pre_attn_scalar", 10}, {"attn_logit_softcapping", nullptr}}),
      HasSubstr("\"attn_logit_softcapping\""));
  EXPECT_THAT(
      refused("gemma2", {{"query_pre_attn_scalar", 10}, {"final_logit_softcapping", nullptr}}),
      HasSubstr("\"final_logit_softcapping\""));
  EXPECT_THAT(refused("gemma2", {{"query_pre_attn_scalar", 10}, {"tie_word_embeddings", false}}),
              HasSubstr("\"tie_word_embeddings\""));
  EXPECT_THAT(refused("gemma3", {{"attn_logit_softcapping", 50}}),
              HasSubstr("\"attn_logit_softcapping\""));
  EXPECT_THAT(refused("smollm3", Json::object()), HasSubstr("\"no_rope_layers\""));
  EXPECT_THAT(refused("qwen3_moe", {{"norm_topk_prob", false}, {"mlp_only_layers", Json::array()}}),
              HasSubstr("\"norm_topk_prob\""));
  EXPECT_THAT(refused("qwen3_moe", {{"norm_topk_prob", true}, {"mlp_only_layers", {0}}}),
              HasSubstr("\"mlp_only_layers\""));
  EXPECT_THAT(refused("gpt2", {{"activation_function", "relu"}}),
              HasSubstr("\"activation_function\""));
  EXPECT_THAT(refused("qwen3", {{"rope_parameters",
                                 {{"rope_type", "llama3"},
                                  {"rope_theta", 1000.0},
                                  {"factor", 4.0},
                                  {"low_freq_factor", 1.0},
                                  {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 31}}}}),
              HasSubstr("\"rope_scaling\""));
  const std::string own = test::MessageOf<InputError>([] {
    const GptConfig config = Resolved(
        {.vocab_size = 8, .n_layer = 1, .n_head = 1, .n_embd = 8, .norm = NormKind::kRmsNorm});
    Gpt model(config);
    model.Materialize(kMeta, 0);
    ToGguf(config, ToHfTensors(model), GgufType::kF32, "tiny");
  });
  EXPECT_THAT(own, AllOf(HasSubstr("\"model_type\" is \"lockstep\""), HasSubstr("gemma3_text")));
}

}  // namespace
}  // namespace lockstep::models
