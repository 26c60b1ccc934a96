#include "data/utf8.h"

#include <gtest/gtest.h>

namespace lockstep::data {
namespace {

TEST(Utf8Test, EveryScalarValueRoundTripsAndNothingElseDecodes) {
  for (uint32_t code = 0; code <= 0x110000; ++code) {
    std::string text;
    AppendUtf8(code, &text);
    const Utf8Character c = DecodeUtf8(text, 0);
    const bool scalar = code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
    ASSERT_EQ(c.length, scalar ? static_cast<int>(text.size()) : 0) << code;
    if (scalar) {
      ASSERT_EQ(c.code_point, code);
    }
    // A prefix of a character is malformed.
    if (text.size() > 1) {
      ASSERT_EQ(DecodeUtf8(text.substr(0, text.size() - 1), 0).length, 0) << code;
    }
  }
}

// A string is well-formed exactly if it is the encoding of what it decodes to: tried with all
// strings of two bytes, and those of three bytes whose first allows overlong forms or surrogates.
TEST(Utf8Test, OnlyShortestFormsAreWellFormed) {
  for (const uint32_t lead : {0x00, 0xc0, 0xe0, 0xed, 0xef, 0xf0, 0xf4}) {
    for (uint32_t low = 0x8000; low < 0x10000; ++low) {
      const uint32_t bits = lead << 16 | low;
      std::string text;
      for (int shift = lead == 0 ? 8 : 16; shift >= 0; shift -= 8) {
        text.push_back(static_cast<char>(bits >> shift));
      }
      const Utf8Character c = DecodeUtf8(text, 0);
      if (c.length == 0) continue;
      std::string again;
      AppendUtf8(c.code_point, &again);
      ASSERT_EQ(again, text.substr(0, c.length)) << std::hex << bits;
    }
  }
}

TEST(Utf8Test, CountsCharactersAndFindsTheFirstMalformedByte) {
  const std::string text = "a\u00e9\u4e2d\U0001f642z";
  EXPECT_EQ(CountUtf8(text), 5);
  EXPECT_EQ(Utf8Offset(text, 0), 0u);
  EXPECT_EQ(Utf8Offset(text, 3), 6u);
  EXPECT_EQ(Utf8Offset(text, 4), 10u);
  EXPECT_EQ(Utf8Offset(text, 5), text.size());
  EXPECT_EQ(ValidUtf8Prefix(text), text.size());
  EXPECT_EQ(ValidUtf8Prefix(text + "\xc3"), text.size());
  EXPECT_EQ(ValidUtf8Prefix("abc\xff" + text), 3u);
  EXPECT_EQ(ValidUtf8Prefix("\xed\xa0\x80"), 0u);
}

TEST(Utf8Test, DescribesCharacters) {
  EXPECT_EQ(DescribeCharacter('x'), "'x' (U+0078)");
  EXPECT_EQ(DescribeCharacter(0x1f642), "'\U0001f642' (U+1F642)");
  EXPECT_EQ(DescribeCharacter('\n'), "U+000A");
}

}  // namespace
}  // namespace lockstep::data
