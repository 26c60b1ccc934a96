#include "data/tokenizer/split_pattern.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "data/tokenizer/character_class.h"
#include "data/utf8.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Pieces = std::vector<std::string>;

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string kRest = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kSlashRest = R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const std::string kLlama3 = kContractions + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})" + kRest;
const std::string kQwen2 = kContractions + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" + kRest;
const std::string kPrefix = R"([^\r\n\p{L}\p{N}]?)";
const std::string kUpperSet = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
const std::string kLowerSet = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";
const std::string kGpt4o = kPrefix + kUpperSet + "*" + kLowerSet + "+" + kContractions + "?|" +
                           kPrefix + kUpperSet + "+" + kLowerSet + "*" + kContractions +
                           R"(?|\p{N}{1,3})" + kSlashRest;
const std::string kTekken = kPrefix + kUpperSet + "*" + kLowerSet + "+|" + kPrefix + kUpperSet +
                            "+" + kLowerSet + R"(*|\p{N})" + kSlashRest;

// The matches, and the gaps in brackets.
Pieces Cut(const SplitPattern& pattern, std::string_view text) {
  Pieces pieces;
  pattern.Cut(text, [&](std::string_view piece, bool is_match) {
    pieces.push_back(is_match ? std::string(piece) : "[" + std::string(piece) + "]");
  });
  return pieces;
}

Pieces Cut(const std::string& regex, std::string_view text) {
  return Cut(*SplitPattern::Compile(regex, "test"), text);
}

TEST(SplitPatternTest, Gpt2) {
  EXPECT_THAT(
      Cut(kGpt2, "We'll see 12 cats!?  x\n\n y  "),
      ElementsAre("We", "'ll", " see", " 12", " cats", "!?", " ", " x", "\n\n", " y", "  "));
  EXPECT_THAT(Cut(kGpt2, "'re's DON'T"), ElementsAre("'re", "'s", " DON", "'", "T"));
  EXPECT_THAT(Cut(kGpt2, "a\u180eb\u3000\u3000c"),
              ElementsAre("a", "\u180e", "b", "\u3000", "\u3000", "c"));
  EXPECT_THAT(Cut(kGpt2, ""), IsEmpty());
}

TEST(SplitPatternTest, Llama3AndQwen) {
  EXPECT_THAT(
      Cut(kLlama3, "I'LL 12345$a\tb!\n\n x\r\n  \n  y"),
      ElementsAre("I", "'LL", " ", "123", "45", "$a", "\tb", "!\n\n", " x", "\r\n  \n", " ", " y"));
  EXPECT_THAT(Cut(kQwen2, "a12"), ElementsAre("a", "1", "2"));
}

TEST(SplitPatternTest, Gpt4oAndTekken) {
  EXPECT_THAT(Cut(kGpt4o, "camelCaseHTTPServer's \u01c5x a/b//\n"),
              ElementsAre("camel", "Case", "HTTPServer's", " \u01c5x", " a", "/b", "//\n"));
  EXPECT_THAT(Cut(kTekken, "It's ABC"), ElementsAre("It", "'s", " ABC"));
}

// The hand-written matchers and PCRE2, two implementations of the same patterns.
TEST(SplitPatternTest, MatchersEqualPcre2) {
  const Pieces units = {"'s",     "'S",     "'ll",    "'\u017f",    "'",          " ",
                        "  ",     "\n",     "\r\n",   "\t",         "\u00a0",     "\u180e",
                        "\u3000", "a",      "the",    "The",        "HTTP",       "\u00e9",
                        "\u0416", "\u4e2d", "\u01c5", "\u02b0",     "\u0301",     "\u0903",
                        "1",      "123",    "\u00bd", "\u2167",     "!",          "...",
                        "/",      "\u2581", "\u200d", "\U0001f642", "\U0002ebf0", "\U00013460",
                        "\ua7cb", "\ua7da", "\ua7db", "\U00010d40", "\U00010d6f", "\u0897"};
  std::mt19937 random(1);
  for (const std::string& regex : {std::string(kGpt2), kLlama3, kQwen2, kGpt4o, kTekken,
                                   std::string(R"(\p{N})"), std::string(R"(\p{N}+)")}) {
    const auto known = KnownSplitPattern(regex);
    ASSERT_NE(known, nullptr) << regex;
    const auto compiled = SplitPattern::Compile("(?:" + regex + ")", "test");
    for (int trial = 0; trial < 5000; ++trial) {
      std::string text;
      for (int i = random() % 12; i > 0; --i) text += units[random() % units.size()];
      ASSERT_EQ(Cut(*known, text), Cut(*compiled, text)) << regex << " on " << text;
    }
  }
}

TEST(SplitPatternTest, LongRunsOfAnyKindAreFine) {
  for (const std::string& regex : {std::string(kGpt2), kLlama3, kGpt4o, "(?:" + kGpt4o + ")"}) {
    const auto pattern = SplitPattern::Compile(regex, "test");
    for (const char* unit : {" ", "a", "A", "\u0301", "1", "!", "\n", " \u3000", "'"}) {
      std::string text;
      while (text.size() < 1000000) text += unit;
      size_t total = 0;
      pattern->Cut(text + "x", [&](std::string_view piece, bool) { total += piece.size(); });
      EXPECT_EQ(total, text.size() + 1);
    }
  }
}

TEST(SplitPatternTest, OtherPatternsHaveOnigurumasMeaning) {
  EXPECT_THAT(Cut("b+", "abbc"), ElementsAre("[a]", "bb", "[c]"));
  EXPECT_THAT(Cut("x*", "abxx"), ElementsAre("[a]", "[b]", "xx"));        // empty matches cut
  EXPECT_THAT(Cut("(a|b)(c)", "acxbc"), ElementsAre("ac", "[x]", "bc"));  // groups
  EXPECT_THAT(Cut("^a", "ab\nac"), ElementsAre("a", "[b\n]", "a", "[c]"));
  EXPECT_THAT(Cut(R"(\s)", "a\u180e\u3000"), ElementsAre("[a\u180e]", "\u3000"));
  EXPECT_THAT(Cut(R"([^\s]+)", " a\u180e"), ElementsAre("[ ]", "a\u180e"));
  EXPECT_THAT(Cut(R"(\S+)", " a\u180e"), ElementsAre("[ ]", "a\u180e"));
  EXPECT_THAT(Cut(R"([\p{Han}]+)", "a\u4e2d\U00031350\U0002ebf0"),
              ElementsAre("[a]", "\u4e2d\U00031350\U0002ebf0"));
  EXPECT_THAT(Cut(R"(\p{Lu}+)", "A\ua7cb\ua7cd"), ElementsAre("A\ua7cb", "[\ua7cd]"));
  EXPECT_THAT(Cut(R"(\P{N}+)", "a\U00010d40"), ElementsAre("a", "[\U00010d40]"));
  EXPECT_THAT(Cut(R"([\p{P}\p{S}]+)", "a!\U0001fae8\U00011f43"),
              ElementsAre("[a]", "!\U0001fae8\U00011f43"));
  EXPECT_THAT(Cut(R"(\p{^L}+)", "\U0002ebf0!"), ElementsAre("[\U0002ebf0]", "!"));
}

// Words have marks, and but for classes some digits. The pieces and the numbers of characters are
// those of tokenizers 0.23.
TEST(SplitPatternTest, WordsAreOnigurumas) {
  EXPECT_THAT(Cut(R"( ?\w+|[\s\S])", "हिन्दी में x² _a‿b e\u0301 Ⅳ-ⓐ🄰."),
              ElementsAre("हिन्दी", " में", " x²", " _a‿b", " e\u0301", " Ⅳ", "-", "ⓐ🄰", "."));
  EXPECT_THAT(Cut(R"(\W+)", "ी, e\u0301!²"), ElementsAre("[ी]", ", ", "[e\u0301]", "!", "[²]"));
  EXPECT_THAT(Cut(R"([\w-]+)", "a-ी²,b"), ElementsAre("a-ी", "[²,]", "b"));
  EXPECT_THAT(Cut(R"([[:word:]]+)", "aी² Ⅳ_."), ElementsAre("aी", "[² ]", "Ⅳ_", "[.]"));
  EXPECT_THAT(Cut(R"(\b)", "e\u0301 a‿b."), ElementsAre("[e\u0301]", "[ ]", "[a‿b]", "[.]"));
  for (const auto& [regex, number] : {std::pair(R"(\w)", 144671), {R"([\w])", 144665}}) {
    const auto pattern = SplitPattern::Compile(regex, "test");
    int words = 0;
    for (uint32_t c = 1; c < 0x110000; ++c) {
      if (c >= 0xd800 && c < 0xe000) continue;
      std::string text;
      AppendUtf8(c, &text);
      pattern->Cut(text, [&](std::string_view, bool is_match) { words += is_match; });
    }
    EXPECT_EQ(words, number) << regex;
  }
}

// What PCRE2 lacks is exactly what the table adds: all code points, by three properties.
TEST(SplitPatternTest, AllLettersMarksAndNumbersAreKnown) {
  const CharacterTable& table = CharacterTable::Get();
  for (const auto& [regex, classes] :
       std::vector<std::pair<std::string, int>>{{R"([\p{L}])", kLetter},
                                                {R"([\p{N}])", kNumber},
                                                {R"([\p{Lu}\p{Lt}])", kUpper},
                                                {R"([\p{Ll}])", kLower},
                                                {R"([\p{M}])", kMark},
                                                {R"([\s])", kSpace}}) {
    std::string all;
    for (uint32_t c = 0; c < 0x110000; ++c) {
      if (c < 0xd800 || c >= 0xe000) AppendUtf8(c, &all);
    }
    size_t matches = 0, members = 0;
    SplitPattern::Compile(regex, "test")->Cut(all, [&](std::string_view piece, bool is_match) {
      for (size_t i = 0; i < piece.size();) {
        const Utf8Character c = DecodeUtf8(piece, i);
        ASSERT_EQ(is_match, (table.Of(c.code_point) & classes) != 0)
            << regex << DescribeCharacter(c.code_point);
        matches += is_match;
        i += c.length;
      }
    });
    for (uint32_t c = 0; c < 0x110000; ++c) members += (table.Of(c) & classes) != 0;
    EXPECT_EQ(matches, members) << regex;
  }
  // Unicode 16's counts.
  size_t letters = 0, numbers = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    letters += (table.Of(c) & kLetter) != 0;
    numbers += (table.Of(c) & kNumber) != 0;
  }
  EXPECT_EQ(letters, 141028u);
  EXPECT_EQ(numbers, 1911u);
}

TEST(SplitPatternTest, WhatPcre2ReadsInAnotherWayIsRefused) {
  const auto message = [](const std::string& regex) {
    return MessageOf<InputError>([&] { SplitPattern::Compile(regex, "t.json: pattern"); });
  };
  EXPECT_THAT(message("a("), AllOf(HasSubstr("t.json: pattern"), HasSubstr("PCRE2")));
  EXPECT_THAT(message("[a[bc]]"), HasSubstr("a character class inside of another"));
  EXPECT_THAT(message("[a-z&&[aeiou]]"), HasSubstr("&&"));
  EXPECT_THAT(message(R"(\h+)"), HasSubstr("\\h"));
  EXPECT_THAT(message("[[:alnum:]]"), HasSubstr("[:alnum:]"));
  EXPECT_THAT(message(R"([a\W])"), HasSubstr("\\W"));
  EXPECT_THAT(message(R"(\p{Nonsense})"), HasSubstr("PCRE2"));
  EXPECT_THAT(message(R"(\p{L)"), HasSubstr("without a name"));
}

// A pattern that backtracks without end meets PCRE2's limit.
TEST(SplitPatternTest, ExplosivePatternsEndWithAnError) {
  const auto pattern = SplitPattern::Compile("(a|aa)+[bc]", "t.json: pattern");
  EXPECT_THAT(MessageOf<InputError>([&] { Cut(*pattern, std::string(100, 'a') + "!"); }),
              HasSubstr("t.json: pattern"));
}

}  // namespace
}  // namespace lockstep::data
