#include "data/tokenizer/tokenizer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/char_tokenizer.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CharTokenizerTest, IdsAreRanksOfCodePoints) {
  const CharTokenizer tokenizer("hello\n\U0001f642\u00e9");
  EXPECT_EQ(tokenizer.vocab_size(), 7);
  EXPECT_THAT(tokenizer.Encode("\nehlo\u00e9\U0001f642"), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{2, 4, 3, 6}), "hol\U0001f642");
}

TEST(CharTokenizerTest, TinyShakespeareHas65Characters) {
  const auto path = SharedData("tinyshakespeare.txt");
  if (!path) GTEST_SKIP() << "no shared/data/tinyshakespeare.txt near the workspace";
  const std::string text = ReadFile(*path);
  const CharTokenizer tokenizer(text);
  EXPECT_EQ(tokenizer.vocab_size(), 65);
  std::vector<int32_t> all(65);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(tokenizer.Decode(all),
            "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text)), text);
}

TEST(CharTokenizerTest, ErrorsNameCharacterAndPosition) {
  const CharTokenizer tokenizer("abc");
  EXPECT_THAT(MessageOf<InputError>([&] { tokenizer.Encode("ab\u00e9"); }),
              AllOf(HasSubstr("'\u00e9' (U+00E9) at byte 2"), HasSubstr("data.tokenizer=byte")));
  EXPECT_THAT(MessageOf<InputError>([&] { tokenizer.Encode("cc\tb"); }),
              HasSubstr("U+0009 at byte 2"));
  EXPECT_THAT(MessageOf<InputError>([&] { tokenizer.Encode("ab\xff"); }),
              HasSubstr("byte 2 is 0xff"));
  EXPECT_THAT(MessageOf<InputError>([] { CharTokenizer("ab\xc3"); }), HasSubstr("byte 2 is 0xc3"));
  EXPECT_THAT(MessageOf<InputError>([] { CharTokenizer(""); }), HasSubstr("empty"));
  EXPECT_THAT(MessageOf<ArgumentError>([&] { tokenizer.Decode(std::vector<int32_t>{3}); }),
              HasSubstr("token 3 is outside"));
  EXPECT_THAT(MessageOf<ArgumentError>([&] { tokenizer.Decode(std::vector<int32_t>{-1}); }),
              HasSubstr("token -1 is outside"));
}

TEST(ByteTokenizerTest, RoundTripsEveryByte) {
  std::string bytes(512, '\0');
  for (int i = 0; i < 512; ++i) bytes[i] = static_cast<char>(i * 7);
  const ByteTokenizer tokenizer;
  const std::vector<int32_t> ids = tokenizer.Encode(bytes);
  ASSERT_EQ(ids.size(), bytes.size());
  for (int i = 0; i < 512; ++i) ASSERT_EQ(ids[i], i * 7 % 256);
  EXPECT_EQ(tokenizer.Decode(ids), bytes);
  EXPECT_EQ(tokenizer.vocab_size(), 256);
  EXPECT_THROW(tokenizer.Decode(std::vector<int32_t>{256}), ArgumentError);
}

TEST(TokenizerJsonTest, CharAndByteRoundTrip) {
  const std::string text = "some \u4e2d\u6587 text\n\t\"quoted\\\"";
  const CharTokenizer characters(text);
  const auto same = Tokenizer::FromJson(characters.ToJson(), "test");
  EXPECT_EQ(same->name(), "char");
  EXPECT_EQ(same->Encode(text), characters.Encode(text));
  EXPECT_EQ(same->ToJson(), characters.ToJson());
  const auto bytes = Tokenizer::FromJson(ByteTokenizer().ToJson(), "test");
  EXPECT_EQ(bytes->name(), "byte");
  EXPECT_EQ(bytes->Encode(text), ByteTokenizer().Encode(text));
}

// A token for each character, and for each byte, in the terms of Hugging Face's library.
TEST(TokenizerJsonTest, CharAndByteAreHuggingFaces) {
  const Json characters = Json::parse(CharTokenizer("b\u00e9 a").ToJson());
  EXPECT_EQ(characters["model"]["type"], "WordLevel");
  EXPECT_EQ(characters["model"]["vocab"], (Json{{" ", 0}, {"a", 1}, {"b", 2}, {"\u00e9", 3}}));
  EXPECT_FALSE(characters["model"]["vocab"].contains(characters["model"]["unk_token"].string()));
  EXPECT_EQ(characters["pre_tokenizer"]["pattern"]["Regex"], R"([\s\S])");
  EXPECT_EQ(characters["decoder"]["type"], "Fuse");
  Json bytes = Json::parse(ByteTokenizer().ToJson());
  EXPECT_EQ(bytes["model"]["vocab"]["A"], 65);
  EXPECT_EQ(bytes["model"]["vocab"].size(), 256u);
  // Read as any file of BPE, it gives the same ids.
  bytes["model"]["ignore_merges"] = true;
  const auto bpe = Tokenizer::FromJson(bytes.dump(), "test");
  EXPECT_EQ(bpe->name(), "bpe");
  EXPECT_EQ(bpe->Encode("na\u00efve \xff\n"), ByteTokenizer().Encode("na\u00efve \xff\n"));
  for (const std::string& config :
       {CharTokenizer("a").ConfigJson(), ByteTokenizer().ConfigJson()}) {
    EXPECT_EQ(Json::parse(config)["tokenizer_class"], "PreTrainedTokenizerFast");
  }
}

TEST(TokenizerJsonTest, FilesOfEarlierVersionsAreRead) {
  const std::string head = R"({"format": "lockstep-tokenizer", "version": 1, "type": )";
  EXPECT_EQ(Tokenizer::FromJson(head + R"("byte"})", "test")->name(), "byte");
  EXPECT_EQ(Tokenizer::FromJson(head + R"("char", "characters": "ab"})", "test")->ToJson(),
            CharTokenizer("ab").ToJson());
}

TEST(TokenizerJsonTest, OtherWordLevelModelsAreRefused) {
  Json file = Json::parse(CharTokenizer("abc").ToJson());
  const auto message = [&] {
    return MessageOf<InputError>([&] { Tokenizer::FromJson(file.dump(), "t.json"); });
  };
  file["model"]["vocab"]["word"] = 3;
  EXPECT_THAT(message(), AllOf(HasSubstr("t.json"), HasSubstr("WordLevel")));
  file["model"]["vocab"] = {{"a", 1}, {"b", 0}};
  EXPECT_THAT(message(), HasSubstr("WordLevel"));
  file["model"]["vocab"] = nullptr;
  EXPECT_THAT(message(), HasSubstr("WordLevel"));
}

TEST(TokenizerJsonTest, WrongFilesAreRefusedByName) {
  const auto message = [](const std::string& Json) {
    return MessageOf<InputError>([&] { Tokenizer::FromJson(Json, "some/tokenizer.json"); });
  };
  const std::string head = R"({"format": "lockstep-tokenizer", "version": 1, "type": )";
  EXPECT_THAT(message("{"), HasSubstr("some/tokenizer.json"));
  EXPECT_THAT(message("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(message("{}"), HasSubstr("\"format\": \"lockstep-tokenizer\""));
  EXPECT_THAT(message(R"({"format": "lockstep-tokenizer", "version": 2, "type": "byte"})"),
              HasSubstr("not a tokenizer file of this version"));
  EXPECT_THAT(message(head + R"("word"})"), HasSubstr("unknown tokenizer type \"word\""));
  EXPECT_THAT(message(head + "7}"), HasSubstr("unknown tokenizer type 7"));
  EXPECT_THAT(message(head + R"("char"})"), HasSubstr("\"characters\""));
  EXPECT_THAT(message(head + R"("char", "characters": 5})"), HasSubstr("\"characters\""));
  EXPECT_THAT(message(head + R"("char", "characters": "ba"})"), HasSubstr("ascending"));
  EXPECT_THAT(message(head + R"("char", "characters": "aab"})"), HasSubstr("ascending"));
}

TEST(MakeTokenizerTest, TakesNamesAndFiles) {
  EXPECT_EQ(MakeTokenizer("char", "ab")->vocab_size(), 2);
  EXPECT_EQ(MakeTokenizer("byte", "")->name(), "byte");
  const std::string folder = TestFolder();
  WriteText(folder + "/mine.json", CharTokenizer("xyz").ToJson());
  EXPECT_EQ(MakeTokenizer(folder + "/mine.json", "")->vocab_size(), 3);
  WriteText(folder + "/tokenizer.json", CharTokenizer("wxyz").ToJson());
  EXPECT_EQ(MakeTokenizer(folder, "")->vocab_size(), 4);
}

TEST(MakeTokenizerTest, ErrorsSayWhatWasExpected) {
  EXPECT_THAT(MessageOf<InputError>([] { MakeTokenizer("bpee", ""); }),
              AllOf(HasSubstr("data.tokenizer=bpee"), HasSubstr("char, byte or gpt2")));
  const std::string folder = TestFolder();
  EXPECT_THAT(MessageOf<InputError>([&] { MakeTokenizer(folder, ""); }),
              HasSubstr("no tokenizer in this folder"));
  WriteText(folder + "/config.json", "{\"n_layer\": 12}");
  EXPECT_THAT(MessageOf<InputError>([&] { MakeTokenizer(folder + "/config.json", ""); }),
              HasSubstr("neither a tokenizer file of Lockstep"));
  setenv("HOME", folder.c_str(), 1);
  unsetenv("LOCKSTEP_GPT2_DIR");
  EXPECT_THAT(MessageOf<InputError>([] { MakeTokenizer("gpt2", ""); }),
              AllOf(HasSubstr("encoder.json and vocab.bpe"), HasSubstr(folder)));
  setenv("LOCKSTEP_GPT2_DIR", folder.c_str(), 1);
  EXPECT_THAT(MessageOf<InputError>([] { MakeTokenizer("gpt2", ""); }),
              HasSubstr("no tokenizer in this folder"));
}

}  // namespace
}  // namespace lockstep::data
