#include "models/options/presets.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "models/gpt/gpt.h"
#include "models/gpt/hf/hf_format.h"
#include "models/train/model_shape.h"
#include "tests/models/parsed_run.h"

namespace lockstep::models {
namespace {

using testing::IsEmpty;

RunConfig With(const std::string& preset, std::vector<std::string> arguments = {}) {
  arguments.push_back("--model.preset=" + preset);
  const ParsedRun run(arguments);
  EXPECT_THAT(run.options.warnings(), IsEmpty()) << preset;
  return run.config;
}

TEST(Presets, EachIsValidAndSurvivesARunFolder) {
  EXPECT_EQ(Presets().size(), 36);
  for (const Preset& preset : Presets()) {
    const RunConfig config = With(preset.name);
    Validate(config);
    EXPECT_FALSE(preset.doc.empty());
    EXPECT_GT(Difference(config, RunConfig()).size(), 1) << preset.name;
    EXPECT_THAT(Difference(config, RunConfigFromToml(ToToml(config), "config.toml")), IsEmpty());
  }
}

// nanoGPT's README: 4 layers, 4 heads, 128 wide, block 64, batch 12, dropout 0, no bias, 2000
// steps.
TEST(Presets, ShakespeareCharCpuIsNanoGptsPublishedConfiguration) {
  const RunConfig c = With("shakespeare-char-cpu");
  EXPECT_EQ(c.model.n_layer, 4);
  EXPECT_EQ(c.model.n_head, 4);
  EXPECT_EQ(c.model.n_embd, 128);
  EXPECT_EQ(c.model.block_size, 64);
  EXPECT_EQ(c.model.vocab_size, 0);
  EXPECT_EQ(c.model.dropout, 0);
  EXPECT_FALSE(c.model.bias);
  EXPECT_TRUE(c.model.tie_embeddings);
  EXPECT_EQ(c.data.tokenizer, "char");
  EXPECT_EQ(c.data.order, "random");
  EXPECT_EQ(c.data.val_fraction, 0.1);
  EXPECT_EQ(c.train.steps, 2000);
  EXPECT_EQ(c.train.batch_size, 12);
  EXPECT_EQ(MicroBatches(c.train, 1), 1);
  EXPECT_EQ(c.train.eval_every, 250);
  EXPECT_EQ(c.optim.schedule, "cosine");
  EXPECT_EQ(c.optim.lr, 1e-3);
  EXPECT_EQ(c.optim.min_lr, 1e-4);
  EXPECT_EQ(c.optim.warmup, 100);
  EXPECT_EQ(c.optim.decay_steps, 2000);
  EXPECT_EQ(c.optim.beta1, 0.9);
  EXPECT_EQ(c.optim.beta2, 0.99);
  EXPECT_EQ(c.optim.weight_decay, 0.1);
  EXPECT_EQ(c.optim.clip, 1);
}

// 3,200 steps of 512 x 1024 tokens are modded-nanogpt's record of 2024-11-06.
TEST(Presets, FineWebIsDepthTwelveAsLongAsTheRecord) {
  const RunConfig c = With("fineweb-124m");
  EXPECT_EQ(c.model.n_embd, 768);
  EXPECT_EQ(c.model.window, 512);
  EXPECT_EQ(c.train.steps * c.train.global_batch_size * c.model.block_size, 1'677'721'600);
  const ParsedRun dial({"--depth=12", "--model.vocab_size=50304", "--model.block_size=1024",
                        "--data.tokenizer=gpt2", "--train.steps=3200", "--train.batch_size=64",
                        "--train.global_batch_size=512", "--train.precision=bf16",
                        "--train.eval_batches=20", "--checkpoint.every=1000"});
  std::vector<std::string> keys;
  for (const OptionDifference& d : Difference(c, dial.config)) keys.push_back(d.key);
  EXPECT_THAT(keys, testing::UnorderedElementsAre("depth", "model.preset"));
}

TEST(Presets, ShakespeareCharIsNanoGptsConfigurationForAGpu) {
  const RunConfig c = With("shakespeare-char");
  EXPECT_EQ(c.model.n_layer, 6);
  EXPECT_EQ(c.model.n_head, 6);
  EXPECT_EQ(c.model.n_embd, 384);
  EXPECT_EQ(c.model.block_size, 256);
  EXPECT_EQ(c.model.dropout, 0.2);
  EXPECT_EQ(c.train.steps, 5000);
  EXPECT_EQ(c.train.batch_size, 64);
  EXPECT_EQ(c.optim.decay_steps, 5000);
}

// Parameters of OpenAI's GPT-2 checkpoints (vocabulary of 50257), with the position table and one
// embedding.
TEST(Presets, Gpt2SizesHaveTheirParameterCounts) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {{"gpt2", 124439808},
                                                              {"gpt2-medium", 354823168},
                                                              {"gpt2-large", 774030080},
                                                              {"gpt2-xl", 1557611200}};
  for (const auto& [name, parameters] : sizes) {
    const RunConfig c = With(name);
    const int64_t width = c.model.n_embd;
    const int64_t block = 12 * width * width + 13 * width;  // with biases
    EXPECT_EQ(c.model.n_layer * block + (50257 + c.model.block_size) * width + 2 * width,
              parameters)
        << name;
    EXPECT_TRUE(c.model.bias);
    EXPECT_EQ(width / c.model.n_head, 64) << name;
    EXPECT_EQ(c.model.vocab_size, 50304);
    for (const int64_t ranks : {1, 2, 4, 8})
      EXPECT_EQ(MicroBatches(c.train, ranks) * c.train.batch_size, c.train.global_batch_size);
  }
}

// Parameter counts of the published checkpoints.
TEST(Presets, LlamaSizesHaveTheirParameterCounts) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {
      {"tinyllama-1.1b", 1100048384},   {"llama-3.2-1b", 1235814400},
      {"llama-3.2-3b", 3212749824},     {"llama-2-7b", 6738415616},
      {"llama-2-13b", 13015864320},     {"llama-2-70b", 68976648192},
      {"llama-3-8b", 8030261248},       {"llama-3-70b", 70553706496},
      {"llama-3.1-405b", 405853388800}, {"mistral-7b", 7248023552},
      {"qwen3-0.6b", 596049920},        {"mistral-7b-v0.1", 7241732096},
      {"qwen2.5-0.5b", 494032768},      {"qwen2.5-1.5b", 1543714304},
      {"qwen2.5-7b", 7615616512},       {"olmo-2-1b", 1484916736},
      {"olmo-2-7b", 7298617344},        {"smollm2-135m", 134515008},
      {"smollm2-360m", 361821120},      {"smollm2-1.7b", 1711376384},
      {"smollm3-3b", 3075098624}};
  for (const auto& [name, parameters] : sizes) {
    const RunConfig c = With(name);
    const GptConfig shape = ToGptConfig(c.model);
    EXPECT_EQ(Gpt(shape).NumParameters(), parameters) << name;  // without memory
    EXPECT_EQ(shape.norm, NormKind::kRmsNorm) << name;
    EXPECT_EQ(shape.activation, nn::MlpActivation::kSwiGlu) << name;
    EXPECT_EQ(shape.position, Position::kRope) << name;
    EXPECT_FALSE(shape.bias) << name;
  }
}

TEST(Presets, GemmaSizesHaveTheirParameterCounts) {
  const std::vector<std::pair<std::string, int64_t>> sizes = {{"gemma-2-2b", 2614341888},
                                                              {"gemma-2-9b", 9241705984},
                                                              {"gemma-3-270m", 268098176},
                                                              {"gemma-3-1b", 999885952}};
  for (const auto& [name, parameters] : sizes) {
    const GptConfig shape = ToGptConfig(With(name).model);
    EXPECT_EQ(Gpt(shape).NumParameters(), parameters) << name;
    EXPECT_EQ(shape.embed_scale, std::sqrt(static_cast<double>(shape.n_embd))) << name;
  }
}

// Each preset of a family is written as one of its folders.
TEST(Presets, HaveTheModelTypesOfTheirFamilies) {
  const std::map<std::string, std::string> types = {{"gpt2", "gpt2"},
                                                    {"llama-3.2-1b", "llama"},
                                                    {"mistral-7b-v0.1", "mistral"},
                                                    {"mixtral-8x7b", "mixtral"},
                                                    {"qwen2.5-7b", "qwen2"},
                                                    {"qwen3-0.6b", "qwen3"},
                                                    {"qwen3-30b-a3b", "qwen3_moe"},
                                                    {"gemma-2-9b", "gemma2"},
                                                    {"gemma-3-1b", "gemma3_text"},
                                                    {"olmo-2-7b", "olmo2"},
                                                    {"smollm2-1.7b", "llama"},
                                                    {"smollm3-3b", "smollm3"}};
  for (const auto& [name, type] : types) {
    EXPECT_EQ(HfModelType(ToGptConfig(With(name).model)), type) << name;
  }
}

// The published counts are 46.7B and 12.9B, and for Qwen3 30.5B and 3.3B.
TEST(Presets, MixturesHaveTheirParameterCounts) {
  const Gpt mixtral(ToGptConfig(With("mixtral-8x7b").model));
  EXPECT_EQ(mixtral.NumParameters(), 46702792704);
  EXPECT_EQ(mixtral.NumActiveParameters(), 12879925248);
  const Gpt qwen3(ToGptConfig(With("qwen3-30b-a3b").model));
  EXPECT_EQ(qwen3.NumParameters(), 30532122624);
  EXPECT_EQ(qwen3.NumActiveParameters(), 30532122624 - 48 * int64_t{128 - 8} * 3 * 2048 * 768);
  GptConfig tiny = ToGptConfig(With("mixtral-tiny").model);
  tiny.vocab_size = 65;
  EXPECT_EQ(Gpt(tiny).NumParameters(), 2372864);
  // As many as the dense llama-tiny has, and the routers.
  EXPECT_EQ(Gpt(tiny).NumActiveParameters(), 746752 + 4 * 8 * 128);
}

TEST(Presets, LlamaTinyIsALlama) {
  GptConfig shape = ToGptConfig(With("llama-tiny").model);
  EXPECT_EQ(shape.norm, NormKind::kRmsNorm);
  EXPECT_EQ(shape.activation, nn::MlpActivation::kSwiGlu);
  EXPECT_EQ(shape.position, Position::kRope);
  EXPECT_LT(shape.n_kv_head, shape.n_head);
  shape.vocab_size = 65;
  EXPECT_EQ(Gpt(shape).NumParameters(), 746752);
}

TEST(Presets, AnythingElseOverridesThem) {
  const RunConfig c = With("gpt2", {"--model.n_layer=2", "--data.tokenizer=byte"});
  EXPECT_EQ(c.model.n_layer, 2);
  EXPECT_EQ(c.data.tokenizer, "byte");
  EXPECT_EQ(c.model.n_embd, 768);
}

}  // namespace
}  // namespace lockstep::models
