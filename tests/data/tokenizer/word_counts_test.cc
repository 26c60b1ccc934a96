#include "data/tokenizer/training/word_counts.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "core/io/json.h"
#include "core/thread_pool.h"
#include "data/corpus.h"
#include "data/tokenizer/training/bpe_trainer.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class WordCountsTest : public testing::Test {
 protected:
  void TearDown() override { SetNumThreads(threads_); }
  const int threads_ = NumThreads();
};

// Words and numbers, punctuation, white space and letters of all kinds, in no language's order.
std::string AwkwardText(size_t bytes) {
  const std::vector<std::string> parts = {"a",  "b",  "Z",   " ", " ",      "  ",        "\n",
                                          "\t", "'s", "'",   ".", "\u00e9", "\u4e2d",    "\u00a0",
                                          "1",  "23", "c d", "-", "\r\n",   "\U0001f642"};
  std::mt19937 random(2);
  std::string text;
  while (text.size() < bytes) text += parts[random() % parts.size()];
  return text;
}

WordSplitter Gpt2Words() { return MakeWordSplitter(Gpt2PreTokenizer(), nullptr); }

// The pre-tokenizer of a byte-level tokenizer with a pattern of its own.
OrderedJson SplitBy(const std::string& regex) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> WordsOf(const WordSplitter& splitter, std::string_view text) {
  std::vector<std::string> words;
  splitter(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

TEST_F(WordCountsTest, WordsAreThoseOfThePreTokenizer) {
  EXPECT_THAT(WordsOf(Gpt2Words(), "It's 1234\xff\xfe a\u0301"),
              ElementsAre("It", "'s", " 1234", "\xff\xfe", " a", "\u0301"));
  EXPECT_THAT(WordsOf(MakeWordSplitter(SplitBy(kLlama3), {{"type", "NFC"}}), "1234 a\u0301\xff"),
              ElementsAre("123", "4", " \u00e1", "\xff"));
  EXPECT_THAT(MessageOf<InputError>([] {
                MakeWordSplitter({{"type", "Digits"}, {"individual_digits", true}}, nullptr);
              }),
              HasSubstr("on the words of a ByteLevel pre-tokenizer"));
  EXPECT_THAT(MessageOf<InputError>([] {
                MakeWordSplitter({{"type", "Whitespace"}}, nullptr);
              }),
              HasSubstr("Whitespace"));
}

TEST_F(WordCountsTest, DoNotDependOnThreadsAndPieces) {
  const std::string text = AwkwardText(1 << 19) + std::string(EmbeddedCorpus());
  std::string joined;
  int pieces = 0;
  const TextSource source = PiecesOf(text);
  for (std::string piece; source(&piece); ++pieces) joined += piece;
  EXPECT_EQ(joined, text);
  EXPECT_GE(pieces, 10);
  for (const OrderedJson& pre_tokenizer : {Gpt2PreTokenizer(), SplitBy(kLlama3)}) {
    const WordSplitter splitter = MakeWordSplitter(pre_tokenizer, nullptr);
    WordCounts expected;
    splitter(text, [&](std::string_view word) { ++expected[std::string(word)]; });
    for (const int threads : {1, 2, 4}) {
      SetNumThreads(threads);
      EXPECT_EQ(CountWords(PiecesOf(text), splitter), expected) << threads;
    }
  }
}

TEST_F(WordCountsTest, TextsWithoutAPlaceToCutStayWhole) {
  for (const std::string& text : {std::string(), std::string(200000, 'x'), std::string("a b")}) {
    const TextSource source = PiecesOf(text);
    std::string piece;
    EXPECT_EQ(source(&piece), !text.empty());
    EXPECT_EQ(piece, text);
    EXPECT_FALSE(source(&piece));
  }
}

// More distinct words than a thread keeps for itself.
TEST_F(WordCountsTest, CountsManyDistinctWords) {
  SetNumThreads(3);
  int64_t texts = 0;
  const WordCounts words = CountWords(
      [&](std::string* text) {
        *text = std::to_string(texts % 300000);
        return ++texts <= 600000;
      },
      [](std::string_view text, const auto& sink) { sink(text); });
  EXPECT_EQ(words.size(), 300000);
  EXPECT_TRUE(std::ranges::all_of(words, [](const auto& word) { return word.second == 2; }));
}

TEST_F(WordCountsTest, ErrorsEndTheCounting) {
  SetNumThreads(2);
  std::atomic<int64_t> texts = 0;
  const auto endless = [&](std::string*) { return ++texts > 0; };
  EXPECT_EQ(MessageOf<InputError>([&] {
              CountWords(endless, [&](std::string_view, const auto&) {
                if (texts > 100) throw InputError("line 101 is not text");
              });
            }),
            "line 101 is not text");
  EXPECT_EQ(MessageOf<InputError>([&] {
              CountWords([](std::string*) -> bool { throw InputError("the file has vanished"); },
                         Gpt2Words());
            }),
            "the file has vanished");
}

}  // namespace
}  // namespace lockstep::data
