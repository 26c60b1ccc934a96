// The Llama family through the programs: trains a preset from scratch, and continues Hugging Face
// folders and writes them back.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "models/gpt/hf/hf_format.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

const std::string kWeights = "tests/testdata/llama_parity";

std::string Folder(const std::string& name) {
  const std::string folder = JoinPath(testing::TempDir(), name);
  RemoveTree(folder);
  MakeDirectories(folder);
  return folder;
}

std::vector<std::string> FineTune(const std::string& weights, const std::string& out,
                                  const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {
      "models/train_gpt",      "--init_from=" + weights, "--data.path=" + kWeights + "/tokens.bin",
      "--model.block_size=16", "--train.steps=4",        "--train.batch_size=3",
      "--optim.warmup=1",      "--optim.lr=1e-2",        "--checkpoint.every=2",
      "--checkpoint.keep=0",   "--out_dir=" + out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<float> Logits(const std::string& folder) {
  models::Gpt model(models::ReadHfConfig(folder));
  model.Materialize(kCpu, 0);
  models::LoadHfWeights(model, folder);
  return model(Tensor::FromVector<int32_t>({3, 1, 4, 1, 5}, {1, 5})).ToVector<float>();
}

class HfFolder : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(HfFolder, IsTrainedAndWrittenBack) {
  const auto& [name, architecture] = GetParam();
  const std::string source = std::string("tests/testdata/") + name, weights = Folder("weights");
  for (const std::string& file : ListDirectory(source)) {
    WriteFileAtomically(JoinPath(weights, file), ReadFile(JoinPath(source, file)));
  }
  // A tokenizer of a kind that Lockstep lacks, as real Llamas have; training on tokens needs none.
  WriteFileAtomically(JoinPath(weights, "tokenizer.json"), R"({"model": {"type": "Unigram"}})");
  const std::string out = Folder("fine_tuned");
  const Result run = RunProgram(FineTune(weights, out));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string latest = JoinPath(out, "latest");
  EXPECT_EQ(models::ReadHfConfig(latest), models::ReadHfConfig(weights));
  EXPECT_THAT(ReadFile(JoinPath(latest, "config.json")), HasSubstr(architecture));
  EXPECT_NE(Logits(latest), Logits(weights));

  // Resuming from the checkpoint in the middle gives the same bits.
  const std::string again = Folder("resumed");
  const Result resumed = RunProgram(FineTune(
      weights, again, {"--checkpoint.resume=" + JoinPath(out, "checkpoints/step-00000002")}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(ReadFile(JoinPath(again, "latest/model.safetensors")),
            ReadFile(JoinPath(latest, "model.safetensors")));
}

INSTANTIATE_TEST_SUITE_P(All, HfFolder,
                         testing::Values(std::pair("llama_parity", "\"LlamaForCausalLM\""),
                                         std::pair("qwen3_parity", "\"Qwen3ForCausalLM\""),
                                         std::pair("gemma3_parity", "\"Gemma3ForCausalLM\""),
                                         std::pair("olmo2_parity", "\"Olmo2ForCausalLM\""),
                                         std::pair("qwen3_moe_parity", "\"Qwen3MoeForCausalLM\"")));

TEST(LlamaTrain, OptionsMustAgreeWithTheWeights) {
  const std::string out = Folder("refused");
  for (const std::string option :
       {"model.n_kv_head=4", "model.head_dim=6", "model.qk_norm=true", "model.n_inner=99",
        "model.norm=layer_norm", "model.activation=relu", "model.position=learned",
        "model.norm_eps=0.5", "model.rope_theta=7.0", "model.tie_embeddings=true",
        "model.bias=true"}) {
    const Result run = RunProgram(FineTune(kWeights, out, {"--" + option}));
    EXPECT_EQ(run.exit_code, 2) << option;
    const std::string key = option.substr(0, option.find('='));
    EXPECT_THAT(run.err, HasSubstr("leave " + key + " out")) << option;
  }
}

TEST(LlamaTrain, ThePresetTrainsAndSamples) {
  const std::string out = Folder("tiny");
  const Result run =
      RunProgram({"models/train_gpt", "--model.preset=llama-tiny", "--train.steps=60",
                  "--train.batch_size=4", "--optim.warmup=5", "--optim.decay_steps=0",
                  "--train.eval_batches=4", "--train.sample_tokens=10", "--out_dir=" + out});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  // Far below ln 90 = 4.5, the loss of a uniform guess over some 90 characters.
  const std::string key = "\"val_loss\":";
  const std::string metrics = ReadFile(JoinPath(out, "metrics.jsonl"));
  const size_t at = metrics.rfind(key);
  ASSERT_NE(at, std::string::npos);
  EXPECT_LT(std::stod(metrics.substr(at + key.size())), 3.3);
  const models::GptConfig config = models::ReadHfConfig(JoinPath(out, "latest"));
  EXPECT_EQ(models::HfModelType(config), "llama");
  EXPECT_EQ(config.n_kv_head, 2);
  const Result sample =
      RunProgram({"models/sample_gpt", "--checkpoint=" + out, "--prompt=The ", "--tokens=100"});
  ASSERT_EQ(sample.exit_code, 0) << sample.err;
  EXPECT_GT(sample.out.size(), 100u);
}

}  // namespace
}  // namespace lockstep
