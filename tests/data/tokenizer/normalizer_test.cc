#include "data/tokenizer/normalizer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>

#include "core/error.h"
#include "core/io/json.h"
#include "data/utf8.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {
using testing::AllOf;
using testing::HasSubstr;

std::string Nfc(const std::string& text) {
  std::string result;
  return ComposeNfc(text, &result) ? result : text;
}

// utf8proc's composition of the whole text, without the search for what needs it.
std::string WholeNfc(const std::string& text) {
  utf8proc_uint8_t* composed =
      utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
  const std::string result(reinterpret_cast<const char*>(composed));
  std::free(composed);
  return result;
}

TEST(NormalizerTest, ComposesExamples) {
  EXPECT_EQ(Nfc("plain"), "plain");
  EXPECT_EQ(Nfc("e\u0301x"), "\u00e9x");
  EXPECT_EQ(Nfc("\u212b"), "\u00c5");
  EXPECT_EQ(Nfc("a\u0307\u0323"), "\u1ea1\u0307");
  EXPECT_EQ(Nfc("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(Nfc("\u0958"), "\u0915\u093c");  // excluded from composition
}

TEST(NormalizerTest, EqualsCompositionOfTheWhole) {
  std::vector<uint32_t> code_points;
  for (uint32_t c = 1; c < 0x30000; ++c) {
    if (c < 0xd800 || c >= 0xe000) code_points.push_back(c);
  }
  for (const uint32_t c : code_points) {  // each alone, before and after a mark
    std::string text;
    AppendUtf8(c, &text);
    ASSERT_EQ(Nfc(text), WholeNfc(text)) << c;
    ASSERT_EQ(Nfc("a" + text + "\u0301"), WholeNfc("a" + text + "\u0301")) << c;
  }
  const std::vector<uint32_t> common = {'a',    'e',    ' ',     0x300,   0x301,   0x323, 0x327,
                                        0xe9,   0x1100, 0x1161,  0x11a8,  0xac00,  0x915, 0x93c,
                                        0x9c7,  0x9be,  0xdd9,   0xdca,   0xddf,   0x344, 0x2126,
                                        0x1e9b, 0x4e2d, 0x11099, 0x110ba, 0x1d15e, 0xf900};
  std::mt19937 random(2);
  for (int trial = 0; trial < 20000; ++trial) {
    std::string text;
    for (int i = random() % 10; i > 0; --i) {
      AppendUtf8(random() % 4 ? common[random() % common.size()]
                              : code_points[random() % code_points.size()],
                 &text);
    }
    ASSERT_EQ(Nfc(text), WholeNfc(text)) << text;
  }
}

TEST(NormalizerTest, StepsFollowOneAnother) {
  const Json file = {{"type", "Sequence"},
                     {"normalizers",
                      {{{"type", "NFC"}},
                       {{"type", "Prepend"}, {"prepend", "_"}},
                       {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "_"}}}}};
  const Normalizer normalizer(JsonObject(file, "t.json: normalizer"));
  std::string buffer;
  EXPECT_EQ(normalizer.Apply("a  e\u0301", &buffer), "_a__\u00e9");
  EXPECT_EQ(normalizer.Apply("", &buffer), "");
  EXPECT_EQ(Normalizer().Apply("a b", &buffer), "a b");
}

TEST(NormalizerTest, OthersAreRefusedByName) {
  const auto message = [](const Json& file) {
    return MessageOf<InputError>([&] { Normalizer(JsonObject(file, "t.json: normalizer")); });
  };
  EXPECT_THAT(message({{"type", "NFKC"}}),
              AllOf(HasSubstr("t.json: normalizer.type: \"NFKC\""), HasSubstr("known")));
  EXPECT_THAT(message({{"type", "NFC"}, {"extra", 1}}), HasSubstr("normalizer.extra"));
  EXPECT_THAT(message({{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}}),
              HasSubstr("t.json: normalizer.normalizers[0].type: \"Lowercase\""));
  EXPECT_THAT(message({{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", ""}}),
              HasSubstr("normalizer.pattern.Regex"));
  EXPECT_THAT(message({{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}}),
              HasSubstr("normalizer.pattern.String"));
  EXPECT_THAT(message({{"type", "Prepend"}, {"prepend", std::string(17, 'a')}}),
              HasSubstr("more than 16 bytes"));
  EXPECT_THAT(message({{"type", "Prepend"}, {"prepend", 5}}), HasSubstr("expected a string"));
  EXPECT_THAT(message(5), HasSubstr("expected an object"));
}

}  // namespace
}  // namespace lockstep::data
