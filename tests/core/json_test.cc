#include "core/io/json.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

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
  const Json value = ParseJson(R"({"a": [1, {"a": 2}], "b": {"a": "x"}})", "some.json");
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
  EXPECT_THROW(IntegerOf(Json(4), 0, 3), InputError);
  EXPECT_THROW(IntegerOf(Json(-1), 0, 3), InputError);
  EXPECT_EQ(IntegersOf(ParseJson("[1, -2]", "some.json")), (std::vector<int64_t>{1, -2}));
  EXPECT_THROW(IntegersOf(ParseJson("[1, 1e30]", "some.json")), InputError);
  EXPECT_THROW(IntegersOf(ParseJson("7", "some.json")), InputError);
}

// A document of every kind of value, whose keys are in no order.
nlohmann::ordered_json Random(std::mt19937& random, int depth) {
  const auto below = [&](uint32_t n) { return random() % n; };
  switch (below(depth > 0 ? 9 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return below(2) == 0;
    case 2:
      return (int64_t{1} << below(63)) * (below(2) == 0 ? 1 : -1);
    case 3:
      return std::numeric_limits<uint64_t>::max() - below(3);
    case 4:
      return std::ldexp(below(1000) / 7.0, static_cast<int>(below(400)) - 200);
    case 5:
      return std::string(below(4), 'x') + "\"\\\n\u00e9\x01";
    case 6: {
      auto list = nlohmann::ordered_json::array();
      for (uint32_t i = below(5); i > 0; --i) list.push_back(Random(random, depth - 1));
      return list;
    }
    default: {
      auto object = nlohmann::ordered_json::object();
      for (uint32_t i = below(5); i > 0; --i) {
        object["k" + std::to_string(below(100))] = Random(random, depth - 1);
      }
      return object;
    }
  }
}

// What the library writes, we write, and read as it does.
TEST(JsonTest, IsTheLibrarys) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const nlohmann::ordered_json theirs = Random(random, 4);
    const std::string text = theirs.dump();
    EXPECT_EQ(OrderedJson::parse(text).dump(), text);
    EXPECT_EQ(OrderedJson::parse(theirs.dump(2)).dump(2), theirs.dump(2));
    EXPECT_EQ(Json::parse(text).dump(-1, true), nlohmann::json(theirs).dump(-1, ' ', true));
    EXPECT_EQ(Json(OrderedJson::parse(text)), Json::parse(text));
    const Json copy = Json::parse(text);
    EXPECT_EQ(copy, Json::parse(copy.dump()));
    std::ostringstream out;
    out << copy;
    EXPECT_EQ(out.str(), copy.dump());
  }
}

TEST(JsonTest, IsBuiltFromValues) {
  OrderedJson j = {{"b", 1}, {"a", {1.5, nullptr, "x"}}};
  j["list"].push_back({{"k", true}});
  j["list"].emplace_back(7u);
  j["object"]["of"] = std::map<std::string, int>{{"y", 2}, {"x", 1}};
  j["numbers"] = std::vector<int64_t>{1, 2};
  j["none"] = OrderedJson::array();
  EXPECT_EQ(j.dump(), R"({"b":1,"a":[1.5,null,"x"],"list":[{"k":true},7],)"
                      R"("object":{"of":{"x":1,"y":2}},"numbers":[1,2],"none":[]})");
  EXPECT_EQ(Json(j).dump().substr(0, 20), R"({"a":[1.5,null,"x"],)");
  EXPECT_FALSE(j.emplace("b", 2));
  EXPECT_TRUE(j.emplace("c", 2));
  EXPECT_TRUE(j.erase("a"));
  EXPECT_FALSE(j.erase("a"));
  j.update({{"b", 3}, {"d", 4}});
  EXPECT_EQ(j["b"], 3);
  EXPECT_EQ(j["d"], 4);
  EXPECT_EQ(Json(std::string("a\xff")).dump(), "\"a\ufffd\"");
}

TEST(JsonTest, GivesWhatIsAskedForOrSaysWhyNot) {
  const Json j = Json::parse(R"({"i": -7, "u": 300, "d": 2.5, "s": "x", "l": [1, 2], "n": null})");
  EXPECT_EQ(j["i"].get<int>(), -7);
  EXPECT_EQ(j["i"].get<double>(), -7.0);
  EXPECT_EQ(j["l"].get<std::vector<int>>(), (std::vector<int>{1, 2}));
  EXPECT_EQ(j.value("i", 3), -7);
  EXPECT_EQ(j.value("none", 3), 3);
  EXPECT_EQ(j.value("s", "y"), "x");
  EXPECT_GT(j["d"], 2);
  EXPECT_EQ(j["u"], 300u);
  EXPECT_EQ(j["d"], 2.5);
  EXPECT_NE(j["s"], "y");
  const auto refusal = [](const auto& get) -> std::string {
    try {
      get();
    } catch (const JsonError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(refusal([&] { j["d"].get<int>(); }), HasSubstr("2.5 is not an integer"));
  EXPECT_THAT(refusal([&] { j["u"].get<int8_t>(); }), HasSubstr("300 is above 127"));
  EXPECT_THAT(refusal([&] { j["i"].get<uint64_t>(); }), HasSubstr("-7 is below 0"));
  EXPECT_THAT(refusal([&] { j["i"].get<bool>(); }), HasSubstr("-7 is not true or false"));
  EXPECT_THAT(refusal([&] { j["n"].get<std::string>(); }), HasSubstr("null is not a text"));
  EXPECT_THAT(refusal([&] { j["none"]; }), HasSubstr("there is no \"none\""));
  EXPECT_THAT(refusal([&] { j["l"].at(2); }), HasSubstr("no item 2 in a list of 2"));
  EXPECT_THAT(refusal([&] { j["s"].at("x"); }), HasSubstr("\"x\" is no object with"));
  EXPECT_THAT(refusal([&] { j["s"].value("x", 1); }), HasSubstr("is no object"));
  EXPECT_EQ(j["s"].Find("x"), nullptr);
}

TEST(JsonTest, QuotedIsPrintableAndShort) {
  EXPECT_EQ(Quoted("a\n\x7f"), "\"a\\x0a\\x7f\"");
  EXPECT_EQ(Quoted(std::string(100, 'x')).size(), 85u);
}

}  // namespace
}  // namespace lockstep
