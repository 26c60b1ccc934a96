#include "data/text/json_field.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "data/text/repair_utf8.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

JsonText Found(const std::string& line, const std::string& field = "text") {
  return JsonField(line, field, [] { return "place"; });
}
std::string Text(const std::string& line) { return Found(line).text; }

TEST(JsonField, TakesTheFieldOfTheOuterObject) {
  EXPECT_EQ(Text(R"({"text": "a\n\"é\u00e9\\"})"), "a\n\"éé\\");
  EXPECT_EQ(Text(R"({"x": {"text": "no"}, "y": [{"text": 1}], "text": "yes", "z": null})"), "yes");
  EXPECT_EQ(Text(R"( {"text":""} )"), "");
  EXPECT_EQ(Text(R"({"text": null})"), "");
  EXPECT_EQ(Found("{\"text\": null, \"x\": \"\xff\"}").repaired, 1);
  EXPECT_EQ(Text("{\"text\": null, \"x\": \"" + std::string(3 << 20, 'a') + "\"}"), "");
  EXPECT_EQ(Found(R"({"a.b": "x", "text": 1})", "a.b").text, "x");
  const std::string deep = std::string(500, '[') + std::string(500, ']');
  EXPECT_EQ(Text("{\"x\": " + deep + ", \"text\": \"t\"}"), "t");
}

TEST(JsonField, ErrorsSayWhere) {
  const auto message = [](const std::string& line) {
    return MessageOf<InputError>([&] { Text(line); });
  };
  EXPECT_THAT(message("{\"text\": \"a\"} x"), AllOf(StartsWith("place: "), HasSubstr("byte 15")));
  EXPECT_THAT(message("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(message("\"text\""), HasSubstr("found a string"));
  EXPECT_THAT(message("{}"),
              HasSubstr("no field \"text\" (found no fields): name the one that holds"));
  EXPECT_THAT(
      message(R"({"question": "a", "answer": {"b": 1}})"),
      AllOf(HasSubstr("(found \"question\", \"answer\"): name the one that holds the text with "
                      "--data.field="),
            HasSubstr("to train on conversations, write them as \"messages\""),
            Not(HasSubstr("dpo"))));
  EXPECT_THAT(message(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"),
              HasSubstr("pairs of answers are trained with --train.objective=dpo"));
  for (const char* row : {R"({"messages": [{"role": "user", "content": "a"}], "id": null})",
                          R"({"conversations": []})", R"({"instruction": "a", "output": "b"})",
                          R"({"prompt": "a", "completion": "b"})"}) {
    EXPECT_THAT(message(row),
                AllOf(HasSubstr("no field \"text\""), HasSubstr("without prepare"),
                      HasSubstr("train_gpt --init_from=MODEL_FOLDER --data.path=FILE"),
                      Not(HasSubstr("write them as"))));
  }
  EXPECT_THAT(message("null"), HasSubstr("found null"));
  EXPECT_THAT(message("{\"text\": {\"text\": \"a\"}}"), HasSubstr("an object"));
  EXPECT_THAT(message("{\"text\": [\"a\"]}"), HasSubstr("an array"));
  EXPECT_THAT(message("{\"text\": \"a\", \"text\": \"b\"}"), HasSubstr("twice"));
  EXPECT_THAT(message("{\"text\": null, \"text\": \"b\"}"), HasSubstr("twice"));
  EXPECT_THAT(message("{\"text\": \"a\", \"text\": null}"), HasSubstr("twice"));
  EXPECT_THAT(message("{\"text\": \"a\", \"x\": " + std::string(600, '[')), HasSubstr("512"));
  EXPECT_THAT(
      message("{\"text\": \"a\", \"x\": " + std::string(600, '[') + std::string(600, ']') + "}"),
      HasSubstr("nested deeper than 512 levels"));
  EXPECT_LT(message("{\"text\": \"" + std::string(100000, 'a')).size(), 500u);
}

TEST(JsonField, LoneSurrogatesAreReplaced) {
  const auto expect = [](const std::string& escaped, const std::string& want, int64_t repaired) {
    const JsonText found = Found("{\"text\": \"" + escaped + "\"}");
    EXPECT_EQ(found.text, want) << escaped;
    EXPECT_EQ(found.repaired, repaired) << escaped;
  };
  expect("\\ud83d\\ude00", "\U0001F600", 0);
  expect("\\uD83D\\uDE00", "\U0001F600", 0);
  expect("\\ud83d", "\uFFFD", 1);
  expect("\\ude00\\ud83d", "\uFFFD\uFFFD", 2);
  expect("\\ud83d\\ud83d\\ude00", "\uFFFD\U0001F600", 1);
  expect("\\ud83d\\\\ude00", "\uFFFD\\ude00", 1);
  expect("\\\\ud83d", "\\ud83d", 0);
  expect("\\u0041\\ud800x", "A\uFFFDx", 1);
  expect("x\\udc00", "x\uFFFD", 1);
  expect("\\udbff\\u0041", "\uFFFDA", 1);
  expect("\\ud800\\n", "\uFFFD\n", 1);
  // Elsewhere in the line, and in lines that the quick parser leaves to the thorough one.
  EXPECT_EQ(Found(R"({"x": "\udfff", "text": "a"})").repaired, 1);
  EXPECT_EQ(Found(R"({"\ud800": 1, "text": "a"})").repaired, 1);
  const std::string large(2 << 20, 'a');
  expect(large + "\\ud800", large + "\uFFFD", 1);
}

TEST(JsonField, MalformedUtf8IsReplaced) {
  EXPECT_EQ(Text("{\"text\": \"a\xff\"}"), "a\uFFFD");
  EXPECT_EQ(Found("{\"text\": \"a\xff\\ud800\xc3\"}").repaired, 3);
  EXPECT_EQ(Found("{\"\xff\": \"\xc3\", \"text\": \"a\"}").repaired, 2);
}

// Tables 3-8 to 3-11 of the Unicode standard 15.
TEST(RepairUtf8, TheStandardsExamples) {
  const std::string bad = "\uFFFD";
  const auto expect = [](std::string text, const std::string& want, int64_t count) {
    EXPECT_EQ(RepairUtf8(&text), count);
    EXPECT_EQ(text, want);
  };
  expect("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41",
         bad + bad + bad + bad + bad + bad + bad + bad + "A", 8);
  expect("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41",
         bad + bad + bad + bad + bad + bad + bad + bad + "A", 8);
  expect("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42",
         bad + bad + bad + bad + bad + "A" + bad + bad + "B", 7);
  expect("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", bad + bad + bad + bad + "A", 4);
  expect("\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64",
         "a" + bad + bad + bad + "b" + bad + "c" + bad + bad + "d", 6);
  expect("", "", 0);
  expect("é中\U0001F600", "é中\U0001F600", 0);
  expect("\xf0\x90\x8d", bad, 1);  // cut short by the end
}

}  // namespace
}  // namespace lockstep::data
