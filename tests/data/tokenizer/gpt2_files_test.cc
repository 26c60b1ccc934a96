#include "data/tokenizer/gpt2_files.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <thread>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/sha256.h"
#include "data/tokenizer/byte_alphabet.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// encoder.json and vocab.bpe of a small vocabulary: the bytes, some words, and the separator.
struct SmallFiles {
  Json encoder = Json::object();
  std::string bpe = "#version: 0.2\n";
  SmallFiles() {
    for (int byte = 0; byte < 256; ++byte) {
      encoder[BytesToPrintable(std::string(1, static_cast<char>(byte)))] = 255 - byte;
    }
    for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{
             {"l", "o"}, {"lo", "w"}, {" ", "low"}, {"e", "r"}, {" low", "er"}, {"\xc3", "\xa9"}}) {
      bpe += BytesToPrintable(left) + " " + BytesToPrintable(right) + "\n";
      encoder[BytesToPrintable(left + right)] = encoder.size();
    }
    encoder["<|endoftext|>"] = encoder.size();
  }
  std::unique_ptr<Tokenizer> Load() const {
    const std::string folder = TestFolder();
    WriteText(folder + "/encoder.json", encoder.dump());
    WriteText(folder + "/vocab.bpe", bpe);
    return LoadTokenizer(folder);
  }
};

TEST(Gpt2FilesTest, MergesWithinPieces) {
  const auto tokenizer = SmallFiles().Load();
  EXPECT_EQ(tokenizer->vocab_size(), 263);
  EXPECT_EQ(tokenizer->end_of_text(), 262);
  EXPECT_THAT(tokenizer->Encode("low lower\u00e9"), ElementsAre(257, 260, 261));
  EXPECT_THAT(tokenizer->Encode("lo w"), ElementsAre(256, 255 - ' ', 255 - 'w'));
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{257, 262, 258}), "low<|endoftext|> low");
  // Text is text: the separator's spelling is not the separator.
  EXPECT_EQ(tokenizer->Encode("<|endoftext|>").size(), 13u);
}

TEST(Gpt2FilesTest, AnyBytesRoundTripTwiceTheSame) {
  const auto tokenizer = SmallFiles().Load();
  std::mt19937 random(5);
  const std::vector<std::string> units = {"low", " ",    "er",   "\u00e9",     "\n", "'s",
                                          "7",   "\xff", "\xc3", "\U0001f642", "\0"};
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (int i = random() % 60; i > 0; --i) {
      text +=
          trial % 2 ? units[random() % units.size()] : std::string(1, static_cast<char>(random()));
    }
    const std::vector<int32_t> ids = tokenizer->Encode(text);
    ASSERT_EQ(tokenizer->Decode(ids), text);
    ASSERT_EQ(tokenizer->Encode(text), ids);  // now from the cache
  }
}

TEST(Gpt2FilesTest, JsonRoundTrip) {
  const auto tokenizer = SmallFiles().Load();
  const auto same = Tokenizer::FromJson(tokenizer->ToJson(), "test");
  EXPECT_EQ(same->name(), "bpe");
  EXPECT_EQ(same->vocab_size(), tokenizer->vocab_size());
  EXPECT_EQ(same->end_of_text(), tokenizer->end_of_text());
  EXPECT_EQ(same->ToJson(), tokenizer->ToJson());
  const std::string text = "lower low \u00e9\xff\n";
  EXPECT_EQ(same->Encode(text), tokenizer->Encode(text));
}

TEST(Gpt2FilesTest, ThreadsShareATokenizer) {
  const auto tokenizer = SmallFiles().Load();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "low" + std::to_string(i) + " lower\n";
  const std::vector<int32_t> expected = tokenizer->Encode(text);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) EXPECT_EQ(tokenizer->Encode(text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Gpt2FilesTest, DamagedFilesAreRefused) {
  const auto message = [](const std::function<void(SmallFiles*)>& damage) {
    SmallFiles files;
    damage(&files);
    return MessageOf<InputError>([&] { files.Load(); });
  };
  EXPECT_THAT(message([](SmallFiles* f) { f->encoder["lo"] = 257; }),
              HasSubstr("have the same id 257"));
  EXPECT_THAT(message([](SmallFiles* f) { f->encoder["lo"] = -1; }),
              AllOf(HasSubstr("encoder.json"), HasSubstr("the id of token \"lo\": -1")));
  EXPECT_THAT(message([](SmallFiles* f) { f->encoder["lo"] = 1 << 30; }),
              HasSubstr("1073741824 is not between 0 and "));
  EXPECT_THAT(message([](SmallFiles* f) { f->encoder["lo"] = "x"; }), HasSubstr("not an integer"));
  EXPECT_THAT(message([](SmallFiles* f) {
                f->encoder.erase("A");
                f->encoder["AA"] = 255 - 'A';
              }),
              HasSubstr("no token is the single byte 65"));
  EXPECT_THAT(message([](SmallFiles* f) { f->bpe += "lo\n"; }),
              AllOf(HasSubstr("vocab.bpe, line 8"), HasSubstr("is not a merge")));
  EXPECT_THAT(message([](SmallFiles* f) { f->bpe += "a b c\n"; }), HasSubstr("is not a merge"));
  EXPECT_THAT(message([](SmallFiles* f) { f->bpe += "q z\n"; }),
              AllOf(HasSubstr("merges[6]"), HasSubstr("\"qz\" is not in the vocabulary")));
  EXPECT_THAT(message([](SmallFiles* f) { f->bpe += "l o\n"; }), HasSubstr("already has a merge"));
}

TEST(Gpt2FilesTest, ReadsGpt2FilesByFolderOrName) {
  const std::string folder = TestFolder();
  const auto expected = SmallFiles().Load();
  WriteText(folder + "/vocab.json", SmallFiles().encoder.dump());
  WriteText(folder + "/merges.txt", SmallFiles().bpe);
  EXPECT_EQ(LoadTokenizer(folder)->ToJson(), expected->ToJson());
  WriteText(folder + "/encoder.json", SmallFiles().encoder.dump());
  WriteText(folder + "/vocab.bpe", SmallFiles().bpe);
  EXPECT_EQ(LoadTokenizer(folder + "/vocab.bpe")->ToJson(), expected->ToJson());
  EXPECT_EQ(LoadTokenizer(folder + "/encoder.json")->ToJson(), expected->ToJson());
  setenv("LOCKSTEP_GPT2_DIR", folder.c_str(), 1);
  EXPECT_EQ(MakeTokenizer("gpt2", "")->ToJson(), expected->ToJson());
}

class RealGpt2Test : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (const auto folder = SharedData("gpt2")) tokenizer_ = LoadTokenizer(*folder);
  }
  static void TearDownTestSuite() { tokenizer_.reset(); }
  void SetUp() override {
    if (!tokenizer_) GTEST_SKIP() << "no shared/data/gpt2 near the workspace";
  }
  static inline std::unique_ptr<Tokenizer> tokenizer_;
  const Json goldens_ = Json::parse(ReadFile(TestData("gpt2_goldens.json")));
};

// The goldens are what tiktoken and Hugging Face's tokenizers agree on (make_gpt2_goldens.py).
TEST_F(RealGpt2Test, GivesTheIdsOfOtherImplementations) {
  EXPECT_EQ(tokenizer_->vocab_size(), 50257);
  EXPECT_EQ(tokenizer_->end_of_text(), 50256);
  ASSERT_GE(goldens_["cases"].size(), 30u);
  for (const Json& golden : goldens_["cases"]) {
    const std::string text = golden["text"];
    const std::vector<int32_t> ids = tokenizer_->Encode(text);
    EXPECT_EQ(ids, golden["ids"].get<std::vector<int32_t>>()) << text;
    EXPECT_EQ(tokenizer_->Decode(ids), text);
  }
}

TEST_F(RealGpt2Test, TokenizesTinyShakespeareAsOthersDo) {
  const auto path = SharedData("tinyshakespeare.txt");
  if (!path) GTEST_SKIP() << "no shared/data/tinyshakespeare.txt near the workspace";
  const std::string text = ReadFile(*path);
  const std::vector<int32_t> ids = tokenizer_->Encode(text);
  const Json& golden = goldens_["tinyshakespeare"];
  EXPECT_EQ(ids.size(), golden["count"].get<size_t>());
  const std::vector<uint16_t> packed(ids.begin(), ids.end());
  EXPECT_EQ(Sha256Of(std::as_bytes(std::span(packed))), golden["uint16_sha256"]);
  EXPECT_EQ(tokenizer_->Decode(ids), text);
}

TEST_F(RealGpt2Test, SurvivesItsOwnJson) {
  const auto same = Tokenizer::FromJson(tokenizer_->ToJson(), "test");
  for (const Json& golden : goldens_["cases"]) {
    EXPECT_EQ(same->Encode(golden["text"].get<std::string>()),
              golden["ids"].get<std::vector<int32_t>>());
  }
}

TEST_F(RealGpt2Test, RandomBytesRoundTrip) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 300; ++trial) {
    std::string bytes(random() % 400, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    ASSERT_EQ(tokenizer_->Decode(tokenizer_->Encode(bytes)), bytes);
  }
}

}  // namespace
}  // namespace lockstep::data
