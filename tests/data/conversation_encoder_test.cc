// Masks of conversations against those of transformers, and what must hold for any of them.
#include "data/conversations/conversation_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

const Json& Goldens() {
  static const Json goldens = Json::parse(ReadFile(TestData("conversation_goldens.json")));
  return goldens;
}

// The small tokenizer of testdata that goes with a template, with the special tokens of the latter.
std::shared_ptr<const Tokenizer> TokenizerFor(const std::string& name) {
  const Json& golden = Goldens()["tokenizers"][name];
  const std::string file = StrCat("tokenizers/", golden["file"].get<std::string>(), ".json");
  Json json = Json::parse(ReadFile(TestData(file)))["tokenizer"];
  int64_t next = 0;
  for (const Json& id : json["model"]["vocab"]) next = std::max(next, id.get<int64_t>() + 1);
  for (const Json& token : json["added_tokens"]) {
    next = std::max(next, token["id"].get<int64_t>() + 1);
  }
  for (const Json& content : golden["added"]) {
    json["added_tokens"].push_back({{"id", next++},
                                    {"content", content},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  return Tokenizer::FromJson(DumpJson(json), name);
}

std::string SourceOf(const std::string& name) {
  return ReadFile(TestData(StrCat("chat_templates/", name, ".jinja")));
}

std::shared_ptr<const ChatTemplate> TemplateFor(const std::string& name,
                                                const std::string& source) {
  auto chat_template = std::make_shared<ChatTemplate>(source, name + ".jinja");
  std::map<std::string, std::string> tokens;
  for (const char* key : {"bos_token", "eos_token"}) {
    const Json& token = Goldens()["tokenizers"][name][key];
    if (token.is_string()) tokens[key] = token.get<std::string>();
  }
  chat_template->set_special_tokens(std::move(tokens));
  return chat_template;
}

ConversationEncoder EncoderFor(const std::string& name, bool special_tokens_of_users = false) {
  return ConversationEncoder(TemplateFor(name, SourceOf(name)), TokenizerFor(name),
                             special_tokens_of_users);
}

Conversation ConversationOf(const Json& messages, const Json& variables = Json::object()) {
  Conversation conversation = ToConversation({{"messages", messages}}, "chat.jsonl:7");
  conversation.variables.update(variables);
  return conversation;
}

Json Turns(std::initializer_list<const char*> contents) {
  Json messages = Json::array();
  for (const char* content : contents) {
    const char* role = messages.size() % 2 == 0 ? "user" : "assistant";
    messages.push_back({{"role", role}, {"content", content}});
  }
  return messages;
}

std::string MaskOf(const EncodedConversation& encoded) {
  std::string mask;
  for (const uint8_t learnt : encoded.learnt) mask += learnt ? '1' : '0';
  return mask;
}

// The texts of the answers, in the tokens that are learnt.
std::vector<std::string> LearntTexts(const EncodedConversation& encoded,
                                     const Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    if (!encoded.learnt[i]) continue;
    if (i == 0 || !encoded.learnt[i - 1]) texts.emplace_back();
    texts.back() += tokenizer.TokenText(encoded.ids[i]);
  }
  return texts;
}

void ExpectGolden(const Json& golden, const std::string& source) {
  const std::string name = golden["template"];
  const ConversationEncoder encoder(TemplateFor(name, source), TokenizerFor(name));
  const Conversation conversation =
      ConversationOf(Goldens()["chats"][golden["chat"].get<std::string>()], golden["variables"]);
  const EncodedConversation encoded = encoder.Encode(conversation);
  SCOPED_TRACE(StrCat(name, ", ", golden["chat"], ": ", encoder.Render(conversation).text));
  EXPECT_EQ(encoded.ids, golden["ids"].get<std::vector<int32_t>>());
  EXPECT_EQ(MaskOf(encoded), golden["mask"].get<std::string>());
}

TEST(ConversationEncoder, MasksAreThoseOfTransformers) {
  ASSERT_GE(Goldens()["cases"].size(), 60);
  for (const Json& golden : Goldens()["cases"]) ExpectGolden(golden, SourceOf(golden["template"]));
}

// Qwen 3's template drops and adds thoughts, so that prefixes of a conversation are not prefixes of
// its text.
TEST(ConversationEncoder, FindsTheSameAnswersWithoutGenerationBlocks) {
  int cases = 0;
  for (const Json& golden : Goldens()["cases"]) {
    const std::string source = SourceOf(golden["template"]);
    const std::string without = std::regex_replace(
        source, std::regex("\\{%-? (end)?generation %\\}"), "{%- if true %}{%- endif %}");
    if (without == source) continue;
    ++cases;
    ExpectGolden(golden, without);
  }
  EXPECT_GE(cases, 10);
}

}  // namespace
}  // namespace lockstep::data
