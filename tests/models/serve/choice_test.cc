// What a client gets of a choice, however it is cut.
#include "models/serve/choice.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>

#include "core/io/json.h"
#include "data/utf8.h"
#include "tests/models/serve/served.h"

namespace lockstep::models {
namespace {

const ServedModel& Model() {
  static const ServedModel model = test::MakeServed(test::Gpt2Shape());
  return model;
}

// A choice whose tokens are bytes, taken as often as the mask says.
struct Taken {
  std::string text;
  std::vector<OrderedJson> parts;
  int64_t pushed = 0;
};

Taken Grow(const Call& call, std::string_view bytes, uint32_t mask, bool ends = false) {
  Choice choice(call, Model(), 0);
  Taken taken;
  const auto take = [&] {
    if (!choice.HasNews()) return;
    taken.parts.push_back(choice.Take(/*of_stream=*/true));
    const OrderedJson& part = taken.parts.back();
    const std::string text = call.chat ? part["delta"]["content"] : part["text"];
    EXPECT_EQ(data::ValidUtf8Prefix(text), text.size());
    taken.text += text;
  };
  for (const char byte : bytes) {
    const int32_t id = [&] {
      for (int32_t i = 3; i < test::kVocabulary; ++i) {
        if (Model().tokenizer->TokenText(i)[0] == byte) return i;
      }
      return -1;
    }();
    ++taken.pushed;
    const bool go_on = choice.Push({.id = id, .log_probability = -1});
    if (mask & 1) take();
    mask = mask >> 1 | mask << 31;
    if (!go_on) break;
  }
  if (ends) choice.Push({.id = test::kEndOfText});
  choice.End();
  take();
  return taken;
}

TEST(ChoiceTest, CharactersAreNeverCut) {
  const std::string text = "aß→𝄞\xff€\xe2\x82";  // and bytes that are none
  const std::string shown = "aß→𝄞\uFFFD€\uFFFD\uFFFD";
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const Taken taken = Grow({.prompts = {{1}}}, text, i == 0 ? ~0u : random());
    EXPECT_EQ(taken.text, shown);
    EXPECT_EQ(taken.parts.back()["finish_reason"], "length");
  }
}

TEST(ChoiceTest, NothingOfAStopTextIsShown) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const uint32_t mask = i == 0 ? ~0u : random();
    const Call call{.prompts = {{1}}, .stop = {"ENDE", "→stop", "ß→x"}};
    const Taken taken = Grow(call, "EN EENDß→stop more", mask);
    EXPECT_EQ(taken.text, "EN EENDß");
    EXPECT_EQ(taken.pushed, std::ssize(std::string_view("EN EENDß→stop")));
    EXPECT_EQ(taken.parts.back()["finish_reason"], "stop");
    EXPECT_EQ(Grow(call, "EN EEND", mask).text, "EN EEND") << "what might have been one";
    EXPECT_EQ(Grow(call, "EENDE", mask).text, "E");
  }
}

TEST(ChoiceTest, AnEndIsNoText) {
  const Taken taken = Grow({.prompts = {{1}}, .ends = {test::kEndOfText}}, "abc", ~0u, true);
  EXPECT_EQ(taken.text, "abc");
  EXPECT_EQ(taken.parts.back()["finish_reason"], "stop");
}

TEST(ChoiceTest, AnAnswerBeginsWithItsFirstWord) {
  const Taken taken = Grow({.chat = true, .prompts = {{1}}}, " \n\t Oh, well\n", ~0u);
  EXPECT_EQ(taken.text, "Oh, well\n");
  EXPECT_EQ(taken.parts[0]["delta"]["role"], "assistant");
  EXPECT_FALSE(taken.parts[1]["delta"].contains("role"));
}

// What lm_eval reads: one entry per token, of the prompt and of what was generated, with the token
// itself among the likeliest.
TEST(ChoiceTest, LogProbabilitiesHaveTheirTokens) {
  const auto id_of = [](const std::string& byte) { return Model().tokenizer->Encode(byte)[0]; };
  const Call call{.echo = true,
                  .prompts = {{id_of("a"), id_of("b")}},
                  .prompt_texts = {"ab"},
                  .ends = {test::kEndOfText},
                  .likeliest = 1};
  Choice choice(call, Model(), 0);
  choice.PushPrompt({id_of("b"), -1.5, {{id_of("c"), -0.5}}});
  EXPECT_TRUE(choice.Push({150, -2, {{151, -1}}}));
  EXPECT_FALSE(choice.Push({test::kEndOfText, -0.25, {{test::kEndOfText, -0.25}}}));
  choice.End();
  const OrderedJson all = choice.Take(/*of_stream=*/false);
  const auto name = [](int32_t id) {
    const std::string bytes = Model().tokenizer->TokenText(id);
    char text[16];
    std::snprintf(text, sizeof text, "bytes:\\x%02x", static_cast<unsigned char>(bytes[0]));
    return std::string(text);
  };
  const OrderedJson& of = all["logprobs"];
  EXPECT_EQ(of["tokens"], OrderedJson({"a", "b", name(150), "<|endoftext|>"}));
  EXPECT_EQ(of["token_logprobs"], OrderedJson({nullptr, -1.5, -2.0, -0.25}));
  EXPECT_EQ(of["top_logprobs"],
            OrderedJson::array({nullptr, OrderedJson{{"c", -0.5}, {"b", -1.5}},
                                OrderedJson{{name(151), -1.0}, {name(150), -2.0}},
                                OrderedJson{{"<|endoftext|>", -0.25}}}));
  EXPECT_EQ(of["text_offset"][1], 1);
  EXPECT_EQ(all["text"], "ab\uFFFD");
  EXPECT_EQ(choice.tokens(), 2);

  const Call chat{.chat = true, .prompts = {{1}}, .likeliest = 1};
  Choice answer(chat, Model(), 0);
  answer.Push({id_of("A"), -2, {{id_of("B"), -1}}});
  answer.End();
  const OrderedJson message = answer.Take(/*of_stream=*/false);
  EXPECT_EQ(message["message"], (OrderedJson{{"role", "assistant"}, {"content", "A"}}));
  EXPECT_EQ(
      message["logprobs"]["content"][0],
      (OrderedJson{{"token", "A"},
                   {"logprob", -2.0},
                   {"bytes", {65}},
                   {"top_logprobs", {{{"token", "B"}, {"logprob", -1.0}, {"bytes", {66}}}}}}));
}

}  // namespace
}  // namespace lockstep::models
