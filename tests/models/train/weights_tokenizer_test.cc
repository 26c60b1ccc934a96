// Text is read with the tokenizer of the weights that a run starts from, or with none.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "models/checkpoint/checkpoint.h"
#include "models/gpt/hf/hf_format.h"
#include "models/train/run_setup.h"
#include "tests/models/parsed_run.h"
#include "tests/models/temp_folder.h"

namespace lockstep::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class WeightsTokenizerTest : public testing::Test {
 protected:
  // Bytes, and one more token than the model has.
  WeightsTokenizerTest() {
    const GptConfig model{
        .vocab_size = 256, .block_size = 64, .n_layer = 1, .n_head = 2, .n_embd = 8};
    Write("model/config.json", ToHfConfig(model));
    std::string text;
    for (int i = 0; i < 200; ++i) text += "Some text of the run. ";
    Write("plain.txt", text);
    Write("plain.md", text);
    Write("new.txt", text + "<new>");
    Write("rows.jsonl", Json{{"text", text}}.dump() + "\n");
  }
  void Write(const std::string& name, const std::string& text) const {
    MakeDirectories(ParentPath(folder_.Path(name)));
    WriteFileAtomically(folder_.Path(name), text);
  }
  void GiveTokenizer() const {
    Json file = Json::parse(data::ByteTokenizer().ToJson());
    file["added_tokens"].push_back(
        {{"id", 256}, {"content", "<new>"}, {"special", false}, {"normalized", false}});
    Write("model/tokenizer.json", file.dump());
  }
  RunSetup Setup(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(),
                     {"--init_from=" + folder_.Path("model"), "--model.block_size=8"});
    const ParsedRun run(arguments);
    return PrepareRun(run.options, run.config, {}, kCpu, 1);
  }
  std::string Error(const std::vector<std::string>& arguments) const {
    return test::MessageOf<InputError>([&] { Setup(arguments); });
  }
  std::string Path(const std::string& name) const { return "--data.path=" + folder_.Path(name); }

  const test::TempFolder folder_{"weights"};
};

TEST_F(WeightsTokenizerTest, WithoutOneTextIsRefused) {
  const auto refused = AllOf(HasSubstr("tokenizer"), HasSubstr("--data.tokenizer="));
  Write("texts/a.txt", "Some text");
  for (const auto& data :
       {Path("plain.txt"), Path("rows.jsonl"), Path("texts"), std::string("--data.path="),
        "--data.mix=" + folder_.Path("plain.txt") + ":1," + folder_.Path("plain.md") + ":1"}) {
    EXPECT_THAT(Error({data}), refused) << data;
    EXPECT_THAT(Error({data, "--lora.rank=2"}), refused) << data;
  }
  // What a preset of another model's training says of its data is no choice.
  EXPECT_THAT(Error({Path("plain.txt"), "--model.preset=shakespeare-char-cpu"}), refused);
  Write("model/tokenizer.model", "SentencePiece's");
  EXPECT_THAT(Error({Path("plain.txt")}), AllOf(refused, HasSubstr("tokenizer.model")));
  EXPECT_EQ(Setup({Path("plain.txt"), "--data.tokenizer=byte"}).dataset.tokenizer->name(), "byte");
}

TEST_F(WeightsTokenizerTest, MayHaveTokensThatDoNotOccur) {
  GiveTokenizer();
  const RunSetup setup = Setup({Path("plain.txt")});
  EXPECT_EQ(setup.dataset.tokenizer->vocab_size(), 257);
  EXPECT_EQ(setup.model.vocab_size, 256);
  const auto refused =
      AllOf(HasSubstr("resize_token_embeddings(257)"), Not(HasSubstr("--model.vocab_size")));
  EXPECT_THAT(Error({Path("new.txt")}), AllOf(refused, HasSubstr("token 256")));
  // Another's is taken for a mistake.
  EXPECT_THAT(Error({Path("plain.txt"), "--data.tokenizer=" + folder_.Path("model")}), refused);
}

// Even one that only other programs can render.
TEST_F(WeightsTokenizerTest, KeepsTheChatTemplateThroughPlainText) {
  GiveTokenizer();
  const std::string text = "{% of another language %}";
  Write("model/chat_template.jinja", text);
  const RunSetup setup = Setup({Path("plain.txt")});
  const auto config = Json::parse(setup.dataset.tokenizer->ConfigJson());
  EXPECT_EQ(config.at("chat_template"), text);
}

TEST_F(WeightsTokenizerTest, OfAdaptersIsThatOfTheirBase) {
  GiveTokenizer();
  Write("adapter/adapter_config.json", Json{{"peft_type", "LORA"},
                                            {"r", 2},
                                            {"lora_alpha", 2},
                                            {"target_modules", {"c_attn"}},
                                            {"base_model_name_or_path", folder_.Path("model")}}
                                           .dump());
  EXPECT_EQ(ReadTokenizer(folder_.Path("adapter"))->vocab_size(), 257);
}

}  // namespace
}  // namespace lockstep::models
