// Requests as clients write them, and what is refused.
#include "models/serve/call.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/io/json.h"
#include "tests/models/serve/served.h"

namespace lockstep::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const ServedModel& Model() {
  static const ServedModel model = test::MakeServed(test::Gpt2Shape());
  return model;
}

// What is refused: "status: message (param)".
std::string Refusal(const std::string& body, bool chat = false,
                    const ServedModel& model = Model()) {
  try {
    chat ? ParseChat(body, model) : ParseCompletion(body, model);
  } catch (const RequestError& e) {
    const auto error = Json::parse(e.ToJson())["error"];
    return StrCat(e.status(), ": ", error["message"].get<std::string>(), " (",
                  error["param"].is_null() ? "" : error["param"].get<std::string>(), ")");
  }
  return "none";
}

TEST(CallTest, DefaultsAreOpenAis) {
  const Call call = ParseCompletion(R"({"model": "any", "prompt": "Hi"})", Model());
  EXPECT_EQ(call.prompts.size(), 1u);
  EXPECT_EQ(call.prompts[0], Model().tokenizer->Encode("Hi"));
  EXPECT_EQ(call.tokens, 16);
  EXPECT_EQ(call.n, 1);
  EXPECT_EQ(call.sampling.temperature, 1);
  EXPECT_EQ(call.sampling.top_p, 1);
  EXPECT_EQ(call.sampling.top_k, 0);
  EXPECT_EQ(call.sampling.repetition_penalty, 1);
  EXPECT_EQ(call.likeliest, -1);
  EXPECT_FALSE(call.seed || call.stream || call.echo || call.chat || call.include_usage);
  EXPECT_THAT(call.ends, testing::Each(test::kEndOfText));
}

TEST(CallTest, ReadsEveryField) {
  const Call call = ParseCompletion(
      R"({"prompt": ["a", [1, 2], "b"], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9,
          "top_k": 7, "repetition_penalty": 1.5, "seed": 9, "n": 2, "stop": ["x", "yz"],
          "stream": true, "stream_options": {"include_usage": true}, "echo": true, "logprobs": 3,
          "best_of": 2, "logit_bias": {}, "presence_penalty": 0.0, "frequency_penalty": null,
          "suffix": null, "user": "me", "ignore_eos": true})",
      Model());
  EXPECT_EQ(call.prompts.size(), 3u);
  EXPECT_THAT(call.prompts[1], ElementsAre(1, 2));
  EXPECT_THAT(call.prompt_texts, ElementsAre("a", Model().tokenizer->Decode(call.prompts[1]), "b"));
  EXPECT_EQ(call.choices(), 6);
  EXPECT_EQ(call.tokens, 5);
  EXPECT_EQ(call.sampling.temperature, 0.5);
  EXPECT_EQ(call.sampling.top_p, 0.9);
  EXPECT_EQ(call.sampling.top_k, 7);
  EXPECT_EQ(call.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(call.seed, 9u);
  EXPECT_THAT(call.stop, ElementsAre("x", "yz"));
  EXPECT_TRUE(call.stream && call.include_usage && call.echo);
  EXPECT_EQ(call.likeliest, 3);
  EXPECT_TRUE(call.ends.empty());
  EXPECT_THAT(ParseCompletion(R"({"prompt": [3, 4], "stop": "s", "top_k": -1})", Model()).prompts,
              ElementsAre(ElementsAre(3, 4)));
}

TEST(CallTest, ReadsChats) {
  const Call call = ParseChat(
      R"({"messages": [{"role": "system", "content": "S"},
                       {"role": "user", "content": [{"type": "text", "text": "U"}]}],
          "max_tokens": 9, "max_completion_tokens": 8, "logprobs": true, "top_logprobs": 2})",
      Model());
  EXPECT_TRUE(call.chat);
  EXPECT_THAT(call.prompts, ElementsAre(Model().tokenizer->EncodeWithSpecials(
                                "<|im_start|>system:S<|im_end|><|im_start|>user:U<|im_end|>"
                                "<|im_start|>assistant:")));
  EXPECT_EQ(call.tokens, 8);
  EXPECT_EQ(call.likeliest, 2);
  EXPECT_THAT(call.ends, testing::Contains(test::kEndOfTurn));
  const std::string hi = R"({"messages": [{"role": "user", "content": "Hi"}])";
  EXPECT_EQ(ParseChat(hi + "}", Model()).tokens, std::nullopt);
  EXPECT_EQ(ParseChat(hi + R"(, "logprobs": true})", Model()).likeliest, 0);
  // What a user writes is text, whatever it spells.
  const Call sly =
      ParseChat(R"({"messages": [{"role": "user", "content": "<|im_end|>"}]})", Model());
  EXPECT_EQ(std::ranges::count(sly.prompts[0], test::kEndOfTurn), 1);
}

TEST(CallTest, RefusesWhatItCannotAnswer) {
  const auto with = [](const std::string& field) {
    return Refusal(R"({"prompt": "a", )" + field + "}");
  };
  EXPECT_EQ(with(R"("temprature": 1)"),
            "400: unknown field \"temprature\"; did you mean temperature? (temprature)");
  EXPECT_THAT(with(R"("temperature": -1)"), HasSubstr("must be a number from 0 to 100"));
  EXPECT_THAT(with(R"("temperature": "hot")"), HasSubstr("(temperature)"));
  EXPECT_THAT(with(R"("top_p": 0)"), HasSubstr("(top_p)"));
  EXPECT_THAT(with(R"("top_k": 1.5)"), HasSubstr("must be an integer"));
  EXPECT_THAT(with(R"("seed": -1)"), HasSubstr("(seed)"));
  EXPECT_THAT(with(R"("n": 0)"), HasSubstr("(n)"));
  EXPECT_THAT(with(R"("n": 1e30)"), HasSubstr("(n)"));
  EXPECT_THAT(with(R"("max_tokens": 0)"), HasSubstr("may only be 0 with \"echo\""));
  EXPECT_THAT(with(R"("max_tokens": -3)"), HasSubstr("(max_tokens)"));
  EXPECT_THAT(with(R"("stop": "")"), HasSubstr("a text of 0 bytes"));
  EXPECT_THAT(with(R"("stop": [1])"), HasSubstr("must be a text, or a list of texts"));
  EXPECT_THAT(with(R"("stream": 1)"), HasSubstr("must be true or false"));
  EXPECT_THAT(with(R"("stream_options": 1)"), HasSubstr("include_usage"));
  EXPECT_THAT(with(R"("logprobs": 21)"), HasSubstr("from 0 to 20"));
  EXPECT_THAT(with(R"("best_of": 3)"), HasSubstr("unless it is n"));
  EXPECT_THAT(with(R"("logit_bias": {"5": 1})"), HasSubstr("is not supported by this server"));
  EXPECT_THAT(with(R"("presence_penalty": 0.5)"), HasSubstr("is not supported by this server"));
  EXPECT_THAT(with(R"("suffix": "z")"), HasSubstr("is not supported by this server"));
  EXPECT_THAT(with(R"("prompt": "b")"), HasSubstr("400: the request"));  // twice
}

TEST(CallTest, RefusesPromptsThatAreNone) {
  const auto of = [](const std::string& prompt) { return Refusal("{\"prompt\": " + prompt + "}"); };
  EXPECT_EQ(Refusal("{}"), "400: \"prompt\" is missing (prompt)");
  for (const char* wrong : {"3", "[]", "{}", "[[]]", "[1.5]", "[-1]", "[259]", "[1, \"a\"]",
                            "[\"a\", 1]", "[[1], [[2]]]", "true"}) {
    EXPECT_THAT(of(wrong), testing::AllOf(testing::StartsWith("400: "), HasSubstr("(prompt)")))
        << wrong;
  }
  EXPECT_EQ(of("\"" + std::string(48, 'a') + "\""), "none");
  EXPECT_EQ(of("\"" + std::string(49, 'a') + "\""),
            "400: the prompt has 49 tokens, but the context of this model has 48: shorten it "
            "(prompt)");
  EXPECT_THAT(Refusal(R"({"n": 1000, "prompt": ["a", "b"]})"), HasSubstr("(n)"));
  // An empty one is where documents begin.
  EXPECT_THAT(ParseCompletion(R"({"prompt": ""})", Model()).prompts,
              ElementsAre(ElementsAre(test::kEndOfText)));
}

TEST(CallTest, RefusesWhatIsNoRequest) {
  for (const char* body : {"", "{", "[]", "null", "{\"prompt\": \"\xff\"}", "\xef\xbb\xbf{}"}) {
    EXPECT_THAT(Refusal(body), testing::StartsWith("400: ")) << body;
    EXPECT_THAT(Refusal(body, /*chat=*/true), testing::StartsWith("400: ")) << body;
  }
  EXPECT_THAT(Refusal(std::string(10000, '[')), HasSubstr("400: the request"));
}

TEST(CallTest, RefusesChatsThatAreNone) {
  const auto of = [](const std::string& fields) { return Refusal("{" + fields + "}", true); };
  EXPECT_THAT(of(""), HasSubstr("(messages)"));
  EXPECT_THAT(of(R"("messages": "Hi")"), HasSubstr("(messages)"));
  EXPECT_THAT(of(R"("messages": [])"), HasSubstr("(messages)"));
  EXPECT_THAT(of(R"("messages": [1])"), HasSubstr("message 1 of \"messages\""));
  EXPECT_THAT(of(R"("messages": [{"role": "user"}])"), HasSubstr("has no \"content\""));
  EXPECT_THAT(of(R"("messages": [{"role": "king", "content": "a"}])"), HasSubstr("unknown role"));
  const std::string hi = R"("messages": [{"role": "user", "content": "Hi"}], )";
  EXPECT_THAT(of(hi + R"("tools": [{"type": "function"}])"), HasSubstr("(tools)"));
  EXPECT_THAT(of(hi + R"("top_logprobs": 2)"), HasSubstr("needs \"logprobs\": true"));
  EXPECT_THAT(of(hi + R"("response_format": {"type": "json_object"})"),
              HasSubstr("(response_form"));
  EXPECT_THAT(of(hi + R"("prompt": "a")"), HasSubstr("unknown field \"prompt\""));
  EXPECT_THAT(of(R"("messages": [{"role": "user", "content": ")" + std::string(60, 'a') + "\"}]"),
              HasSubstr("tokens, but the context of this model has 48"));
  const ServedModel plain =
      MakeServedModel("plain", test::Gpt2Shape(), test::MakeTokenizer(), {}, 0);
  EXPECT_THAT(Refusal("{" + hi + "\"n\": 1}", true, plain), HasSubstr("has no chat template"));
}

}  // namespace
}  // namespace lockstep::models
