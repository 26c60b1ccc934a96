// The files of a tokenizer that older versions of transformers wrote.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Ids = std::vector<int32_t>;

// A golden tokenizer.json as the files that it was before there was any.
class SlowFolder {
 public:
  explicit SlowFolder(const std::string& name)
      : golden_(Json::parse(ReadFile(TestData("tokenizers/" + name + ".json")))) {
    const Json& model = golden_["tokenizer"]["model"];
    std::string merges = "#version: 0.2\n";
    for (const Json& merge : model["merges"]) {
      merges += merge.is_string() ? merge.get<std::string>()
                                  : merge[0].get<std::string>() + " " + merge[1].get<std::string>();
      merges += "\n";
    }
    Write("vocab.json", model["vocab"].dump());
    Write("merges.txt", merges);
    for (Json token : golden_["tokenizer"]["added_tokens"]) {
      const std::string id = token["id"].dump();
      token.erase("id");
      decoder_[id] = token;
    }
  }
  void Write(const std::string& name, const std::string& text) const {
    WriteText(folder_ + "/" + name, text);
  }
  std::unique_ptr<Tokenizer> Load() const { return LoadTokenizer(folder_); }
  std::string Message() const {
    return MessageOf<InputError>([&] { Load(); });
  }
  void ExpectGoldenIds(const Tokenizer& tokenizer) const {
    for (const Json& golden : golden_["cases"]) {
      const std::string text = golden["text"];
      const Ids ordinary = golden["ordinary"];
      ASSERT_EQ(tokenizer.Encode(text), ordinary) << text;
      ASSERT_EQ(tokenizer.EncodeWithSpecials(text), golden.value("specials", ordinary)) << text;
    }
  }
  const Json& decoder() const { return decoder_; }

 private:
  const std::string folder_ = TestFolder();
  const Json golden_;
  Json decoder_ = Json::object();
};

TEST(TokenizerFolderTest, TheClassDecidesHowTextIsCut) {
  for (const auto& [golden, name] : std::vector<std::pair<std::string, std::string>>{
           {"qwen2", "Qwen2Tokenizer"}, {"gpt2", "GPT2TokenizerFast"}}) {
    const SlowFolder folder(golden);
    const Json config = {{"tokenizer_class", name}, {"added_tokens_decoder", folder.decoder()}};
    folder.Write("tokenizer_config.json", config.dump());
    const auto tokenizer = folder.Load();
    folder.ExpectGoldenIds(*tokenizer);
    EXPECT_EQ(tokenizer->ConfigJson(), config.dump());
    // A checkpoint has it in one file, which is complete.
    folder.ExpectGoldenIds(*Tokenizer::FromJson(tokenizer->ToJson(), "test"));
  }
}

TEST(TokenizerFolderTest, WithoutAClassTheModelDecides) {
  const SlowFolder folder("qwen2");
  folder.Write("config.json", R"({"model_type": "qwen3"})");
  Json added = Json::object();
  for (const auto& [id, token] : folder.decoder().items()) {
    added[token["content"].get<std::string>()] = std::stoi(id);
  }
  folder.Write("added_tokens.json", added.dump());
  folder.Write("special_tokens_map.json",
               R"({"eos_token": {"content": "<|im_end|>", "lstrip": false},
                   "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})");
  const auto tokenizer = folder.Load();
  folder.ExpectGoldenIds(*tokenizer);
  EXPECT_EQ(tokenizer->special_ids().eos, tokenizer->AddedId("<|im_end|>"));
  // Tokens with roles of a model's own.
  folder.Write("special_tokens_map.json",
               R"({"eos_token": "<|im_end|>", "extra_special_tokens": {"turn": "<|im_start|>"}})");
  folder.ExpectGoldenIds(*folder.Load());
  folder.Write("config.json", R"({"model_type": "llama"})");
  EXPECT_THAT(folder.Message(), AllOf(HasSubstr("llama"), HasSubstr("tokenizer_class")));
}

TEST(TokenizerFolderTest, OtherKindsAreRefusedByName) {
  const SlowFolder folder("gpt2");
  folder.Write("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer"})");
  EXPECT_THAT(folder.Message(), AllOf(HasSubstr("RobertaTokenizer"), HasSubstr("save_pretrained")));
  const std::string other = TestFolder();
  EXPECT_FALSE(HasTokenizer(other));
  WriteText(other + "/tokenizer.model", "x");
  EXPECT_TRUE(HasTokenizer(other));
  for (const std::string& path : {other, other + "/tokenizer.model"}) {
    EXPECT_THAT(MessageOf<InputError>([&] { LoadTokenizer(path); }),
                AllOf(HasSubstr("tokenizer.model"), HasSubstr("save_pretrained")));
  }
}

TEST(TokenizerFolderTest, SlowTokenizersPutBosInFront) {
  const SlowFolder folder("gpt2");
  folder.Write("tokenizer_config.json",
               R"({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true,
                   "bos_token": "<|endoftext|>", "add_prefix_space": true})");
  const auto tokenizer = folder.Load();
  EXPECT_EQ(tokenizer->special_ids().before, Ids{*tokenizer->AddedId("<|endoftext|>")});
  EXPECT_EQ(tokenizer->Encode("the"), tokenizer->Encode(" the"));
}

TEST(TokenizerFolderTest, TokensThatOnlyTheConfigHas) {
  const std::string folder = TestFolder();
  Json file = Json::parse(ReadFile(TestData("tokenizers/gpt2.json")))["tokenizer"];
  file["added_tokens"] = Json::array();
  const auto size = static_cast<int32_t>(file["model"]["vocab"].size());
  const int32_t known = file["model"]["vocab"]["<|im_end|>"];
  WriteText(folder + "/tokenizer.json", file.dump());
  const auto with = [&](const Json& config) {
    WriteText(folder + "/tokenizer_config.json", config.dump());
    return LoadTokenizer(folder);
  };
  const auto decoder = [](int32_t id, const std::string& content, bool special) {
    return Json{{"added_tokens_decoder",
                 {{std::to_string(id), {{"content", content}, {"special", special}}}}}};
  };
  // Words of the vocabulary become control tokens; new ones are added behind it.
  auto tokenizer = with(decoder(known, "<|im_end|>", true));
  EXPECT_THAT(tokenizer->EncodeWithSpecials("<|im_end|>"), ElementsAre(known));
  EXPECT_GT(tokenizer->Encode("<|im_end|>").size(), 1u);
  tokenizer = with({{"eos_token", "<|im_end|>"}});
  EXPECT_THAT(tokenizer->EncodeWithSpecials("<|im_end|>"), ElementsAre(known));
  tokenizer = with(decoder(size, "<think>", false));
  EXPECT_EQ(tokenizer->vocab_size(), size + 1);
  EXPECT_THAT(tokenizer->Encode("<think>"), ElementsAre(size));
  EXPECT_EQ(Tokenizer::FromJson(tokenizer->ToJson(), "test")->AddedId("<think>"), size);
  // transformers would give it another id than the file says.
  EXPECT_THAT(MessageOf<InputError>([&] { with(decoder(size + 5, "<think>", false)); }),
              AllOf(HasSubstr("added_tokens_decoder"), HasSubstr("<think>")));
  EXPECT_THAT(MessageOf<InputError>([&] {
                with({{"added_tokens_decoder", {{"x", {{"content", "<a>"}}}}}});
              }),
              HasSubstr("added_tokens_decoder"));
}

}  // namespace
}  // namespace lockstep::data
