#include "models/sample/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "data/utf8.h"

namespace lockstep::models {
namespace {

// What is shown piece by piece, and in total.
struct Shown {
  std::vector<std::string> pieces;
  std::string all;
  bool stopped = false;
};

Shown Show(const std::vector<std::string>& tokens, const std::vector<std::string>& stops = {}) {
  TextStream stream(stops);
  Shown out;
  for (const std::string& token : tokens) out.pieces.push_back(stream.Push(token));
  out.stopped = stream.stopped();
  out.pieces.push_back(stream.Finish());
  for (const std::string& piece : out.pieces) out.all += piece;
  return out;
}

using Pieces = std::vector<std::string>;

TEST(TextStreamTest, ShowsTextAtOnce) {
  EXPECT_EQ(Show({"ab", "", "c"}).pieces, Pieces({"ab", "", "c", ""}));
}

TEST(TextStreamTest, ShowsOnlyWholeCharacters) {
  EXPECT_EQ(Show({"\xc3", "\xa4"}).pieces, Pieces({"", "ä", ""}));
  EXPECT_EQ(Show({"a\xe2", "\x82", "\xac!"}).pieces, Pieces({"a", "", "€!", ""}));
  EXPECT_EQ(Show({"\xf0", "\x9f", "\x98", "\x80"}).pieces, Pieces({"", "", "", "😀", ""}));
}

TEST(TextStreamTest, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(Show({"\xff", "a"}).pieces, Pieces({"\uFFFD", "a", ""}));
  EXPECT_EQ(Show({"\x80\x80"}).all, "\uFFFD\uFFFD");
  EXPECT_EQ(Show({"\xe2", "\x82", "a"}).pieces, Pieces({"", "", "\uFFFD\uFFFDa", ""}));
  EXPECT_EQ(Show({"\xe2\x82"}).pieces, Pieces({"", "\uFFFD\uFFFD"}));  // never completed
  // No character starts like this, but that is known only from the second byte.
  EXPECT_EQ(Show({"\xe0", "\x80"}).pieces, Pieces({"", "\uFFFD\uFFFD", ""}));
  EXPECT_EQ(Show({"\xed", "\xa0"}).pieces, Pieces({"", "\uFFFD\uFFFD", ""}));
  EXPECT_EQ(Show({"\xf4", "\x90"}).pieces, Pieces({"", "\uFFFD\uFFFD", ""}));
  EXPECT_EQ(Show({"\xc0"}).pieces, Pieces({"\uFFFD", ""}));
}

TEST(TextStreamTest, StopsBeforeTheStopText) {
  const Shown shown = Show({"one", " two", " three"}, {"two"});
  EXPECT_EQ(shown.all, "one ");
  EXPECT_TRUE(shown.stopped);
  EXPECT_FALSE(Show({"one"}, {"two"}).stopped);
}

TEST(TextStreamTest, NoPartOfAStopTextIsShown) {
  EXPECT_EQ(Show({"ab", "c", "d"}, {"bcd"}).pieces, Pieces({"a", "", "", ""}));
  // It was not a stop text after all.
  EXPECT_EQ(Show({"ab", "c", "e"}, {"bcd"}).pieces, Pieces({"a", "", "bce", ""}));
  // It might have become a stop text, but the text ends.
  EXPECT_EQ(Show({"ab", "c"}, {"bcd"}).pieces, Pieces({"a", "", "bc"}));
  // A failed match may contain the start of the next one.
  EXPECT_EQ(Show({"a", "a", "a", "b", "x"}, {"aab"}).all, "a");
  EXPECT_EQ(Show({"abab", "ac"}, {"abac"}).all, "ab");
  // Nothing is shown after the end.
  EXPECT_EQ(Show({"xstop", "more", "stop"}, {"stop"}).all, "x");
}

TEST(TextStreamTest, TheFirstCompleteStopTextCounts) {
  EXPECT_EQ(Show({"abcd"}, {"abcd", "bc"}).all, "a");
  EXPECT_EQ(Show({"a", "b", "c", "d"}, {"abcd", "bc"}).all, "a");
  EXPECT_EQ(Show({"abc"}, {"c", "bc", "x"}).all, "a");  // they end together: the longest
  EXPECT_EQ(Show({"x\n", "\n"}, {"\n\n", "END"}).all, "x");
}

TEST(TextStreamTest, StopTextsWithMultiByteCharacters) {
  EXPECT_EQ(Show({"a\xe2", "\x82", "\xac", "b"}, {"€"}).all, "a");
  EXPECT_EQ(Show({"a\xe2", "\x82", "\xad", "b"}, {"€"}).all,
            "a\xe2\x82\xad"
            "b");
}

TEST(TextStreamTest, AnEmptyStopTextIsAnError) { EXPECT_THROW(TextStream({"a", ""}), InputError); }

// Any bytes, cut anywhere, give the same text; it and each of its pieces are UTF-8.
TEST(TextStreamTest, DoesNotDependOnHowBytesAreCut) {
  std::mt19937 random(1);
  const std::vector<std::vector<std::string>> stops = {{},
                                                       {"ab"},
                                                       {"aab", "ba"},
                                                       {"€"},
                                                       {"\xc3\xa4"
                                                        "a",
                                                        "bbb"}};
  const std::vector<std::string> parts = {"a", "b", "ab", "€", "ä", "😀", "\xe2", "\x82", "\xff"};
  int stopped = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += parts[random() % parts.size()];
    const auto& stop = stops[static_cast<size_t>(trial) % stops.size()];
    const Shown whole = Show({bytes}, stop);
    stopped += whole.stopped;
    EXPECT_EQ(data::ValidUtf8Prefix(whole.all), whole.all.size());
    for (const std::string& s : stop) EXPECT_EQ(whole.all.find(s), std::string::npos);
    std::vector<std::string> cut(1);
    for (char byte : bytes) {
      if (random() % 2 == 0) cut.emplace_back();
      cut.back() += byte;
    }
    const Shown pieces = Show(cut, stop);
    EXPECT_EQ(pieces.all, whole.all) << trial;
    EXPECT_EQ(pieces.stopped, whole.stopped) << trial;
    for (const std::string& piece : pieces.pieces) {
      EXPECT_EQ(data::ValidUtf8Prefix(piece), piece.size()) << trial;
    }
  }
  EXPECT_GT(stopped, 500);
}

}  // namespace
}  // namespace lockstep::models
