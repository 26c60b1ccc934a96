#include "core/io/json.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ErrorOf(std::string_view text) {
  try {
    ParseJson(text, "some.json", 4);
  } catch (const InputError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted " << text;
  return "";
}

TEST(JsonTest, ReadsValues) {
  const nlohmann::json value = ParseJson(R"({"a": [1, {"a": 2}], "b": {"a": "x"}})", "some.json");
  EXPECT_EQ(value["a"][1]["a"], 2);
  EXPECT_EQ(value["b"]["a"], "x");
}

TEST(JsonTest, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_THAT(ErrorOf(R"({"a": 1, "a": 1})"), AllOf(HasSubstr("some.json"), HasSubstr("\"a\"")));
  EXPECT_THAT(ErrorOf(R"([{"x": {"k": 1, "l": 2, "k": 3}}])"), HasSubstr("\"k\" appears twice"));
  EXPECT_THAT(ErrorOf(R"({"\u0061": 1, "a": 1})"), HasSubstr("\"a\" appears twice"));
}

TEST(JsonTest, RefusesDeepNesting) {
  EXPECT_NO_THROW(ParseJson("[[[[1]]]]", "some.json", 4));
  EXPECT_THAT(ErrorOf("[[[[[1]]]]]"), HasSubstr("deeper than 4"));
  EXPECT_THAT(ErrorOf(std::string(1'000'000, '[')), HasSubstr("deeper than 4"));
}

TEST(JsonTest, NamesThePosition) {
  EXPECT_THAT(ErrorOf(R"({"a": 1,})"), HasSubstr("at byte 9"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("\"\xff\""), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("1 2"), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf("1e999"), HasSubstr("JSON"));
}

TEST(JsonTest, IntegersAreWhatTheyAreOrRefused) {
  const auto of = [](const char* text) { return IntegerOf(ParseJson(text, "some.json")); };
  EXPECT_EQ(of("-3"), -3);
  EXPECT_EQ(of("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(of("-9223372036854775808"), INT64_MIN);
  for (const char* text : {"9223372036854775808", "1e30", "133333333333333333333333300", "1.5",
                           "\"1\"", "true", "null", "[1]"}) {
    EXPECT_THROW(of(text), InputError) << text;
  }
  EXPECT_THROW(IntegerOf(nlohmann::json(4), 0, 3), InputError);
  EXPECT_THROW(IntegerOf(nlohmann::json(-1), 0, 3), InputError);
  EXPECT_EQ(IntegersOf(ParseJson("[1, -2]", "some.json")), (std::vector<int64_t>{1, -2}));
  EXPECT_THROW(IntegersOf(ParseJson("[1, 1e30]", "some.json")), InputError);
  EXPECT_THROW(IntegersOf(ParseJson("7", "some.json")), InputError);
}

TEST(JsonTest, QuotedIsPrintableAndShort) {
  EXPECT_EQ(Quoted("a\n\x7f"), "\"a\\x0a\\x7f\"");
  EXPECT_EQ(Quoted(std::string(100, 'x')).size(), 85u);
}

}  // namespace
}  // namespace lockstep
