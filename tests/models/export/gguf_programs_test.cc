// A GGUF file wherever a Hugging Face folder is taken: the same runs, texts and exports.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "models/export/gguf_writer.h"
#include "tests/models/export/gguf_families.h"
#include "tests/subprocess.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

const std::string kFolder = "tests/testdata/llama_parity";

class GgufPrograms : public testing::Test {
 protected:
  GgufPrograms() {
    test::WriteFamily(models::ReadHfConfig(kFolder), kFolder, models::GgufType::kF32, file_);
  }
  static Result Train(const std::string& from, const std::string& out,
                      const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {
        "models/train_gpt",
        "--init_from=" + from,
        "--data.val_fraction=0",
        "--model.block_size=16",
        "--train.steps=4",
        "--train.batch_size=2",
        "--checkpoint.every=2",
        "--checkpoint.keep=0",
        "--out_dir=" + out,
        "--data.path=" + (IsDirectory(from) ? from : kFolder) + "/tokens.bin"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Result run = RunProgram(arguments);
    EXPECT_EQ(run.exit_code, 0) << run;
    return run;
  }
  static std::string Text(const std::string& checkpoint, const std::string& adapter = "") {
    std::vector<std::string> arguments = {"models/sample_gpt", "--checkpoint=" + checkpoint,
                                          "--prompt=3 1 4", "--tokens=12", "--temperature=0"};
    if (!adapter.empty()) arguments.push_back("--adapter=" + adapter);
    const Result run = RunProgram(arguments);
    EXPECT_EQ(run.exit_code, 0) << run;
    return run.out;
  }
  static std::string Weights(const std::string& out, const char* file = "model.safetensors") {
    return ReadFile(StrCat(out, "/latest/", file));
  }

  const test::TempFolder to_{"gguf_programs"};
  const std::string file_ = to_.Path("tiny.gguf");
};

TEST_F(GgufPrograms, TrainAndContinueAsFromTheFolder) {
  Train(kFolder, to_.Path("a"));
  Train(file_, to_.Path("b"));
  EXPECT_TRUE(Weights(to_.Path("a")) == Weights(to_.Path("b")));
  Train(file_, to_.Path("c"), {"--checkpoint.resume=" + to_.Path("b/checkpoints/step-00000002")});
  EXPECT_TRUE(Weights(to_.Path("a")) == Weights(to_.Path("c")));
  EXPECT_EQ(Text(to_.Path("b")), Text(to_.Path("a")));
  EXPECT_EQ(Text(file_), Text(kFolder));
}

// Which a checkpoint finds again by its path, and knows by its hash.
TEST_F(GgufPrograms, AreTheBaseOfAdapters) {
  const std::string out = to_.Path("lora");
  Train(file_, out, {"--lora.rank=2", "--lora.base=nf4"});
  const std::string text = Text(out);
  EXPECT_FALSE(text.empty());
  test::WriteFamily(models::ReadHfConfig(kFolder), kFolder, models::GgufType::kF16, file_);
  const Result other =
      RunProgram({"models/sample_gpt", "--checkpoint=" + out, "--prompt=3 1 4", "--tokens=2"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("has adapters of other weights"));
}

// Those that llama.cpp's --lora takes, instead of PEFT's folder.
TEST_F(GgufPrograms, AreAdapters) {
  const std::string base = "tests/testdata/gpt2_parity", peft = "tests/testdata/gpt2_peft";
  const std::string adapter = to_.Path("adapter.gguf");
  const auto run = [&](const std::string& from, const std::string& format, const std::string& out) {
    const Result result = RunProgram({"models/export_gpt", "--checkpoint=" + base,
                                      "--adapter=" + from, "--format=" + format, "--out=" + out});
    EXPECT_EQ(result.exit_code, 0) << result;
  };
  run(peft, "gguf_lora", adapter);
  MakeDirectories(to_.Path("again"));
  run(adapter, "gguf_lora", to_.Path("again/adapter.gguf"));
  EXPECT_TRUE(ReadFile(adapter) == ReadFile(to_.Path("again/adapter.gguf")));
  run(peft, "hf", to_.Path("x"));
  run(adapter, "hf", to_.Path("y"));
  EXPECT_TRUE(ReadFile(to_.Path("x/model.safetensors")) ==
              ReadFile(to_.Path("y/model.safetensors")));

  EXPECT_EQ(Text(base, adapter), Text(base, peft));
  EXPECT_NE(Text(base, adapter), Text(base));
  const auto tuned = [&](const std::string& from, const std::string& out) {
    Train(base, to_.Path(out), {"--lora.init_from=" + from});
    return Weights(to_.Path(out), "adapter_model.safetensors");
  };
  EXPECT_TRUE(tuned(adapter, "b") == tuned(peft, "a"));
  EXPECT_EQ(Text(to_.Path("b")), Text(to_.Path("a")));

  const Result no_base = RunProgram({"models/sample_gpt", "--checkpoint=" + adapter});
  EXPECT_EQ(no_base.exit_code, 2);
  EXPECT_THAT(no_base.err, HasSubstr("--adapter"));
}

TEST_F(GgufPrograms, ExportToTheFolderTheyCameFrom) {
  const auto exported = [&](const std::string& from, const std::string& name) {
    const Result run =
        RunProgram({"models/export_gpt", "--checkpoint=" + from, "--out=" + to_.Path(name)});
    EXPECT_EQ(run.exit_code, 0) << run;
    return ReadFile(to_.Path(name) + "/model.safetensors");
  };
  EXPECT_TRUE(exported(file_, "x") == exported(kFolder, "y"));
}

}  // namespace
}  // namespace lockstep
