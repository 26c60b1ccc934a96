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
        "models/train_gpt",      "--init_from=" + from,   "--data.path=" + kFolder + "/tokens.bin",
        "--data.val_fraction=0", "--model.block_size=16", "--train.steps=4",
        "--train.batch_size=2",  "--checkpoint.every=2",  "--checkpoint.keep=0",
        "--out_dir=" + out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Result run = RunProgram(arguments);
    EXPECT_EQ(run.exit_code, 0) << run;
    return run;
  }
  static std::string Text(const std::string& checkpoint) {
    const Result run = RunProgram({"models/sample_gpt", "--checkpoint=" + checkpoint,
                                   "--prompt=3 1 4", "--tokens=12", "--temperature=0"});
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
