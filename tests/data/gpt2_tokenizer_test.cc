#include "data/tokenizer/gpt2_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "core/io/file.h"
#include "core/io/sha256.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> pieces;
  Gpt2Splitter().Split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(Gpt2SplitterTest, CutsAsGpt2Does) {
  EXPECT_THAT(
      Split("We'll see 12 cats!?  x\n\n y  "),
      ElementsAre("We", "'ll", " see", " 12", " cats", "!?", " ", " x", "\n\n", " y", "  "));
  EXPECT_THAT(Split("'re's DON'T"), ElementsAre("'re", "'s", " DON", "'", "T"));
  EXPECT_THAT(Split("a\u180eb\u3000\u3000c"),
              ElementsAre("a", "\u180e", "b", "\u3000", "\u3000", "c"));
  EXPECT_THAT(Split(""), ElementsAre());
}

TEST(Gpt2SplitterTest, MalformedBytesAreTheirOwnPieces) {
  EXPECT_THAT(Split("ab\xff\xfe cd\xc3"), ElementsAre("ab", "\xff\xfe", " cd", "\xc3"));
  EXPECT_THAT(Split("\x80"), ElementsAre("\x80"));
}

TEST(Gpt2SplitterTest, LongRunsOfAnyKindAreFine) {
  for (const char* unit : {" ", "a", "1", "!", "\n", " \u3000", "'", "\xff"}) {
    std::string text;
    while (text.size() < 3000000) text += unit;
    size_t total = 0;
    Gpt2Splitter().Split(text + "x", [&](std::string_view piece) { total += piece.size(); });
    EXPECT_EQ(total, text.size() + 1);
  }
}

// encoder.json and vocab.bpe of a small vocabulary: the bytes, some words, and the separator.
struct SmallFiles {
  json encoder = json::object();
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
  Gpt2Vocabulary Parse() const { return ParseGpt2Files(encoder, bpe, "encoder.json", "vocab.bpe"); }
};

TEST(Gpt2TokenizerTest, MergesWithinPieces) {
  const Gpt2Tokenizer tokenizer(SmallFiles().Parse());
  EXPECT_EQ(tokenizer.vocab_size(), 263);
  EXPECT_EQ(tokenizer.end_of_text(), 262);
  EXPECT_THAT(tokenizer.Encode("low lower\u00e9"), ElementsAre(257, 260, 261));
  EXPECT_THAT(tokenizer.Encode("lo w"), ElementsAre(256, 255 - ' ', 255 - 'w'));
  EXPECT_EQ(tokenizer.Decode(std::vector<int32_t>{257, 262, 258}), "low<|endoftext|> low");
  // Text is text: the separator's spelling is not the separator.
  EXPECT_EQ(tokenizer.Encode("<|endoftext|>").size(), 13u);
}

TEST(Gpt2TokenizerTest, AnyBytesRoundTripTwiceTheSame) {
  const Gpt2Tokenizer tokenizer(SmallFiles().Parse());
  std::mt19937 random(5);
  const std::vector<std::string> units = {"low", " ",    "er",   "\u00e9",     "\n", "'s",
                                          "7",   "\xff", "\xc3", "\U0001f642", "\0"};
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    for (int i = random() % 60; i > 0; --i) {
      text +=
          trial % 2 ? units[random() % units.size()] : std::string(1, static_cast<char>(random()));
    }
    const std::vector<int32_t> ids = tokenizer.Encode(text);
    ASSERT_EQ(tokenizer.Decode(ids), text);
    ASSERT_EQ(tokenizer.Encode(text), ids);  // now from the cache
  }
}

// The whole tokenizer against the definition: split, bytes, then merges by a linear search.
TEST(Gpt2TokenizerTest, EqualsTheDefinition) {
  const SmallFiles files;
  const Gpt2Vocabulary vocabulary = files.Parse();
  const Gpt2Tokenizer tokenizer(vocabulary);
  std::mt19937 random(6);
  for (int trial = 0; trial < 500; ++trial) {
    std::string text;
    for (int i = random() % 300; i > 0; --i) text += "lower \xc3\xa9"[random() % 8];
    std::vector<int32_t> expected;
    for (const std::string& piece : Split(text)) {
      std::vector<std::string> parts;
      for (const char c : piece) parts.emplace_back(1, c);
      for (bool merged = true; merged;) {
        merged = false;
        for (const BpeMerge& merge : vocabulary.merges) {
          for (size_t i = 0; i + 1 < parts.size() && !merged; ++i) {
            if (parts[i] != vocabulary.tokens[merge.left]) continue;
            if (parts[i + 1] != vocabulary.tokens[merge.right]) continue;
            parts[i] += parts[i + 1];
            parts.erase(parts.begin() + i + 1);
            merged = true;
          }
          if (merged) break;
        }
      }
      for (const std::string& part : parts) {
        expected.push_back(files.encoder[BytesToPrintable(part)].get<int32_t>());
      }
    }
    ASSERT_EQ(tokenizer.Encode(text), expected) << text;
  }
}

TEST(Gpt2TokenizerTest, JsonRoundTrip) {
  const Gpt2Tokenizer tokenizer(SmallFiles().Parse());
  const auto same = Tokenizer::FromJson(tokenizer.ToJson(), "test");
  EXPECT_EQ(same->name(), "gpt2");
  EXPECT_EQ(same->vocab_size(), tokenizer.vocab_size());
  EXPECT_EQ(same->end_of_text(), tokenizer.end_of_text());
  EXPECT_EQ(same->ToJson(), tokenizer.ToJson());
  const std::string text = "lower low \u00e9\xff\n";
  EXPECT_EQ(same->Encode(text), tokenizer.Encode(text));
}

TEST(Gpt2TokenizerTest, ThreadsShareATokenizer) {
  const Gpt2Tokenizer tokenizer(SmallFiles().Parse());
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "low" + std::to_string(i) + " lower\n";
  const std::vector<int32_t> expected = tokenizer.Encode(text);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) EXPECT_EQ(tokenizer.Encode(text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Gpt2VocabularyTest, DamagedFilesAreRefused) {
  const auto message = [](const std::function<void(SmallFiles*)>& damage) {
    SmallFiles files;
    damage(&files);
    return MessageOf<InputError>([&] { files.Parse(); });
  };
  EXPECT_THAT(message([](SmallFiles* f) { f->encoder.erase("A"); }), HasSubstr("must be 0 to 261"));
  EXPECT_THAT(message([](SmallFiles* f) { f->encoder["lo"] = 257; }),
              HasSubstr("but another token has it, too"));
  EXPECT_THAT(message([](SmallFiles* f) { f->encoder["lo"] = -1; }), HasSubstr("has id -1"));
  EXPECT_THAT(message([](SmallFiles* f) { f->encoder["lo"] = "x"; }), HasSubstr("not an integer"));
  EXPECT_THAT(message([](SmallFiles* f) { f->encoder["\u4e2d"] = 263; }),
              HasSubstr("byte alphabet"));
  EXPECT_THAT(message([](SmallFiles* f) {
                f->encoder.erase("A");
                f->encoder["AA"] = 255 - 'A';
              }),
              HasSubstr("no token is the single byte 65"));
  EXPECT_THAT(message([](SmallFiles* f) { f->bpe += "lo\n"; }),
              AllOf(HasSubstr("vocab.bpe, line 8"), HasSubstr("is not a merge")));
  EXPECT_THAT(message([](SmallFiles* f) { f->bpe += "a b c\n"; }), HasSubstr("is not a merge"));
  EXPECT_THAT(message([](SmallFiles* f) { f->bpe += "q z\n"; }),
              AllOf(HasSubstr("vocab.bpe, line 8"), HasSubstr("\"qz\" is not in the vocabulary")));
  EXPECT_THAT(message([](SmallFiles* f) { f->bpe += "l o\n"; }), HasSubstr("already has a merge"));
}

// Hugging Face's form of the small vocabulary.
json HuggingFace() {
  const SmallFiles files;
  json merges = json::array();
  std::istringstream lines(files.bpe);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) merges.push_back(line);
  json vocab = files.encoder;
  vocab.erase("<|endoftext|>");
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 262}, {"content", "<|endoftext|>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
          {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"vocab", vocab}, {"merges", merges}}}};
}

TEST(Gpt2VocabularyTest, ReadsHuggingFaceTokenizers) {
  const std::string folder = TestFolder();
  const Gpt2Tokenizer expected(SmallFiles().Parse());
  json file = HuggingFace();
  WriteText(folder + "/tokenizer.json", file.dump());
  EXPECT_EQ(LoadTokenizer(folder)->ToJson(), expected.ToJson());
  for (json& merge : file["model"]["merges"]) {
    const std::string text = merge;
    merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
  }
  WriteText(folder + "/pairs.json", file.dump());
  EXPECT_EQ(LoadTokenizer(folder + "/pairs.json")->ToJson(), expected.ToJson());
}

TEST(Gpt2VocabularyTest, ReadsGpt2FilesByFolderOrName) {
  const std::string folder = TestFolder();
  const Gpt2Tokenizer expected(SmallFiles().Parse());
  WriteText(folder + "/vocab.json", SmallFiles().encoder.dump());
  WriteText(folder + "/merges.txt", SmallFiles().bpe);
  EXPECT_EQ(LoadTokenizer(folder)->ToJson(), expected.ToJson());
  WriteText(folder + "/encoder.json", SmallFiles().encoder.dump());
  WriteText(folder + "/vocab.bpe", SmallFiles().bpe);
  EXPECT_EQ(LoadTokenizer(folder + "/vocab.bpe")->ToJson(), expected.ToJson());
  EXPECT_EQ(LoadTokenizer(folder + "/encoder.json")->ToJson(), expected.ToJson());
  setenv("LOCKSTEP_GPT2_DIR", folder.c_str(), 1);
  EXPECT_EQ(MakeTokenizer("gpt2", "")->ToJson(), expected.ToJson());
}

TEST(Gpt2VocabularyTest, OtherAlgorithmsOfHuggingFaceAreRefused) {
  const auto message = [](const std::string& pointer, const json& value) {
    json file = HuggingFace();
    file[json::json_pointer(pointer)] = value;
    return MessageOf<InputError>([&] { ParseHuggingFaceTokenizer(file, "t.json"); });
  };
  EXPECT_THAT(message("/model/type", "Unigram"), HasSubstr("a model of type \"Unigram\""));
  EXPECT_THAT(message("/normalizer", {{"type", "NFC"}}), HasSubstr("a normalizer"));
  EXPECT_THAT(message("/pre_tokenizer", {{"type", "Sequence"}}),
              HasSubstr("pre-tokenizer Sequence"));
  EXPECT_THAT(message("/pre_tokenizer", nullptr), HasSubstr("pre-tokenizer null"));
  EXPECT_THAT(message("/pre_tokenizer/add_prefix_space", true), HasSubstr("add_prefix_space"));
  EXPECT_THAT(message("/pre_tokenizer/use_regex", false), HasSubstr("without its pattern"));
  EXPECT_THAT(message("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(message("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(message("/model/ignore_merges", true), HasSubstr("ignore_merges"));
  EXPECT_THAT(message("/model/merges/0", 5), HasSubstr("merge 0"));
  EXPECT_THAT(message("/model/vocab", 5), HasSubstr("\"vocab\" is of the wrong type"));
  EXPECT_THAT(message("/added_tokens/0/content", 5), HasSubstr("t.json"));
  EXPECT_THAT(message("/added_tokens", 5), HasSubstr("t.json"));
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
  const json goldens_ = json::parse(ReadFile(TestData("gpt2_goldens.json")));
};

// The goldens are what tiktoken and Hugging Face's tokenizers agree on (make_gpt2_goldens.py).
TEST_F(RealGpt2Test, GivesTheIdsOfOtherImplementations) {
  EXPECT_EQ(tokenizer_->vocab_size(), 50257);
  EXPECT_EQ(tokenizer_->end_of_text(), 50256);
  ASSERT_GE(goldens_["cases"].size(), 30u);
  for (const json& golden : goldens_["cases"]) {
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
  const json& golden = goldens_["tinyshakespeare"];
  EXPECT_EQ(ids.size(), golden["count"].get<size_t>());
  const std::vector<uint16_t> packed(ids.begin(), ids.end());
  EXPECT_EQ(Sha256Of(std::as_bytes(std::span(packed))), golden["uint16_sha256"]);
  EXPECT_EQ(tokenizer_->Decode(ids), text);
}

TEST_F(RealGpt2Test, SurvivesItsOwnJson) {
  const auto same = Tokenizer::FromJson(tokenizer_->ToJson(), "test");
  for (const json& golden : goldens_["cases"]) {
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
