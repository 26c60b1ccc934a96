// Rows of conversations: the formats, and what is wrong with others.
#include "data/conversations/conversation.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/data/compressed_files.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

Conversation Read(const std::string& line) {
  return ToConversation(ParseRow(line, "c.jsonl:3"), "c.jsonl:3");
}

std::string ErrorOf(const std::string& line) {
  return MessageOf<InputError>([&] { Read(line); });
}

TEST(Conversation, ReadsTheUsualFormats) {
  const OrderedJson question_and_answer =
      OrderedJson::parse(R"([{"role":"user","content":"Q"},{"role":"assistant","content":"A"}])");
  for (
      const char* line : {
          R"({"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]})",
          R"({"messages":[{"content":"Q","role":"human","weight":null},{"role":"model","content":"A"}]})",
          R"({"conversations":[{"from":"human","value":"Q"},{"from":"gpt","value":"A"}],"id":7})",
          R"({"conversations":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]})",
          R"({"instruction":"Q","input":"","output":"A"})",
          R"({"instruction":"Q","output":"A"})",
          R"({"prompt":"Q","completion":"A"})",
          R"({"prompt":"Q","completion":"A","tools":null,"chat_template_kwargs":null})",
          R"({"instruction":"","input":"Q","output":"A"})",
          R"({"messages":[{"role":"system","content":""},{"role":"user","content":"Q"},
              {"role":"assistant","content":"A"}]})",
          R"({"conversations":[{"from":"system","value":null},{"from":"human","value":"Q"},
              {"from":"gpt","value":"A"}]})",
          R"({"prompt":[{"role":"user","content":"Q"}],"completion":[{"role":"assistant","content":"A"}]})",
      }) {
    const Conversation conversation = Read(line);
    EXPECT_EQ(conversation.messages, question_and_answer) << line;
    EXPECT_THAT(conversation.learnt, ElementsAre(false, true)) << line;
    EXPECT_FALSE(conversation.empty) << line;
    EXPECT_TRUE(LooksLikeConversation(OrderedJson::parse(line))) << line;
  }
  EXPECT_FALSE(LooksLikeConversation(OrderedJson::parse(R"({"text":"Q"})")));
  const Conversation alpaca =
      Read(R"({"instruction":"Add.","input":"1 2","output":"3","system":"S"})");
  EXPECT_EQ(alpaca.messages.dump(),
            R"([{"role":"system","content":"S"},{"role":"user","content":"Add.\n\n1 2"},)"
            R"({"role":"assistant","content":"3"}])");
}

TEST(Conversation, KeepsPartsOfTextAsObjects) {
  EXPECT_EQ(Read(R"({"messages":[{"role":"user","content":[{"type":"text","text":"Q"}]},
                     {"role":"assistant","content":["A",{"type":"text","text":""}]}]})")
                .messages.dump(),
            R"([{"role":"user","content":[{"type":"text","text":"Q"}]},{"role":"assistant",)"
            R"("content":[{"type":"text","text":"A"},{"type":"text","text":""}]}])");
}

TEST(Conversation, AlpacasHistoryBecomesEarlierTurns) {
  const Conversation conversation =
      Read(R"({"instruction":"c","output":"C","history":[["a","A"],["b","B"]],"system":"S"})");
  EXPECT_EQ(conversation.messages,
            Read(R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"a"},
                     {"role":"assistant","content":"A"},{"role":"user","content":"b"},
                     {"role":"assistant","content":"B"},{"role":"user","content":"c"},
                     {"role":"assistant","content":"C"}]})")
                .messages);
  EXPECT_THAT(conversation.learnt, ElementsAre(false, false, true, false, true, false, true));
  for (const char* none : {"null", "[]"}) {
    EXPECT_EQ(Read(StrCat(R"({"instruction":"Q","output":"A","history":)", none, "}")).messages,
              Read(R"({"instruction":"Q","output":"A"})").messages);
  }
  EXPECT_TRUE(Read(R"({"instruction":"Q","output":"A","history":[["a",""]]})").empty);
  for (const char* bad : {R"("a")", R"(["a"])", R"([["a"]])", R"([["a",1]])", R"([{"a":"A"}])"}) {
    EXPECT_THAT(ErrorOf(StrCat(R"({"instruction":"Q","output":"A","history":)", bad, "}")),
                AllOf(StartsWith("c.jsonl:3: "), HasSubstr("\"history\" must be a list")));
  }
}

// transformers' _alias_reasoning_fields.
TEST(Conversation, ReasoningHasAliases) {
  const auto read = [](const std::string& fields) {
    OrderedJson answer =
        Read(R"({"messages":[{"role":"assistant","content":"A",)" + fields + "}]}").messages[0];
    const auto of = [&](const char* key) { return answer.value(key, "-"); };
    return StrCat(of("reasoning_content"), of("thinking"), of("reasoning"));
  };
  EXPECT_EQ(read(R"("reasoning_content":"c")"), "cc-");
  EXPECT_EQ(read(R"("thinking":"t")"), "tt-");
  EXPECT_EQ(read(R"("reasoning":"r","thinking":null)"), "rrr");
  EXPECT_EQ(read(R"("reasoning":"r","thinking":"t","reasoning_content":"c")"), "ctr");
  EXPECT_EQ(read(R"("reasoning":"r","thinking":"")"), "r");  // empty is not absent
}

TEST(Conversation, MarksSayWhatIsLearnt) {
  const auto learnt = [](const std::string& mark) {
    return Read(R"({"messages":[{"role":"user","content":"Q","train":false},
                    {"role":"assistant","content":"A")" +
                mark + R"(},{"role":"assistant","content":"B"}]})")
        .learnt;
  };
  EXPECT_THAT(learnt(""), ElementsAre(false, true, true));
  for (const char* mark : {R"(,"train":false)", R"(,"weight":0)", R"(,"weight":0.0)"}) {
    EXPECT_THAT(learnt(mark), ElementsAre(false, false, true)) << mark;
  }
  EXPECT_THAT(learnt(R"(,"weight":1)"), ElementsAre(false, true, true));
  // What the assistant says in a prompt is given.
  EXPECT_THAT(Read(R"({"prompt":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"},
                       {"role":"user","content":"R"}],"completion":"B"})")
                  .learnt,
              ElementsAre(false, false, false, true));
}

// Templates see that there are none, as in transformers.
TEST(Conversation, ListsOfCallsAndToolsMayBeEmpty) {
  const Conversation conversation =
      Read(R"({"messages":[{"role":"assistant","content":"A","tool_calls":[]}],"tools":[]})");
  EXPECT_EQ(conversation.messages.dump(),
            R"([{"role":"assistant","content":"A","tool_calls":[]}])");
  EXPECT_EQ(conversation.variables.dump(), R"({"tools":[]})");
  EXPECT_TRUE(Read(R"({"messages":[{"role":"assistant","content":" ","tool_calls":[]}]})").empty);
}

// Such rows are left out, and are no reason to stop.
TEST(Conversation, SaysWhetherAMessageIsEmpty) {
  const auto message = [](const std::string& text) {
    return R"({"messages":[{"role":"user","content":"Q"},)" + text + "]}";
  };
  for (const std::string& line : {
           message(R"({"role":"assistant","content":""})"),
           message(R"({"role":"assistant","content":null})"),
           message(R"({"role":"assistant","content":[]})"),
           message(R"({"role":"assistant","content":[{"type":"text","text":""}]})"),
           message(R"({"role":"assistant","content":"A"},{"role":"user","content":""})"),
           std::string(
               R"({"conversations":[{"from":"human","value":""},{"from":"gpt","value":"A"}]})"),
           message(R"({"role":"assistant","content":" \n\t\u3000"})"),
           message(R"({"role":"assistant","content":["\n",{"type":"text","text":" "}]})"),
           std::string(R"({"prompt":"Q","completion":"\u00a0"})"),
           std::string(R"({"instruction":"Q","input":"","output":""})"),
           std::string(R"({"instruction":"Q","output":null})"),
           std::string(R"({"instruction":"","output":"A"})"),
           std::string(R"({"prompt":"Q","completion":""})"),
           std::string(R"({"prompt":"","completion":"A"})"),
       }) {
    EXPECT_TRUE(Read(line).empty) << line;
  }
  EXPECT_FALSE(
      Read(message(R"({"role":"user","content":" "},{"role":"assistant","content":"A"})")).empty);
  EXPECT_FALSE(Read(message(R"({"role":"assistant","content":"","tool_calls":[{"function":"f"}]},
                               {"role":"tool","content":""},{"role":"assistant","content":"A"})"))
                   .empty);
}

TEST(Conversation, GivesTemplatesToolsAndTheirOrder) {
  const Conversation conversation = Read(
      R"({"messages":[{"role":"user","content":"Q","name":null},{"role":"assistant","content":null,
          "tool_calls":[{"function":{"name":"f","arguments":{"z":1,"a":2}}}]},
          {"role":"tool","content":"3"},{"role":"assistant","content":"A"}],
          "tools":[{"type":"function","function":{"name":"f"}}],
          "chat_template_kwargs":{"enable_thinking":false}})");
  EXPECT_EQ(conversation.messages[0].dump(), R"({"role":"user","content":"Q"})");
  EXPECT_EQ(
      conversation.messages[1].dump(),
      R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"z":1,"a":2}}}]})");
  EXPECT_EQ(conversation.variables.dump(),
            R"({"tools":[{"type":"function","function":{"name":"f"}}],"enable_thinking":false})");
  EXPECT_THAT(conversation.learnt, ElementsAre(false, true, false, true));
}

TEST(Conversation, ErrorsSayWhatAndWhere) {
  const auto says = [](const std::string& line, const std::string& what) {
    EXPECT_THAT(ErrorOf(line), AllOf(StartsWith("c.jsonl:3: "), HasSubstr(what))) << line;
  };
  const auto message = [&](const std::string& text, const std::string& what) {
    says(R"({"messages":[{"role":"user","content":"Q"},)" + text + "]}", what);
  };
  says("", "not valid JSON");
  says(R"({"messages": [}, "x": 1})",
       "not valid JSON at byte 15: syntax error while parsing value - unexpected '}'");
  says(R"({"messages":)", "not valid JSON");
  says(R"({"messages":"\ud800"})", "not valid JSON");
  says("[]", "found array, but expected {\"messages\"");
  says(R"({"text":"Q"})", "this row is not a conversation: expected {\"messages\"");
  says(R"({"conversation":[],"id":3})", "; found \"conversation\", \"id\"");
  says(R"({"prompt":"Q","chosen":"A","rejected":"B"})",
       "pairs of answers are trained with --train.objective=dpo");
  says(R"({"instruction":"Q","response":"A"})", "\"instruction\", but no \"output\"");
  says(R"({"a":1,"a":2})", "the key \"a\" appears twice");
  says(R"({"messages":)" + std::string(200, '['), "nested deeper than 100 levels");
  says(R"({"messages":[]})", "\"messages\" must be a list of messages that is not empty");
  says(R"({"messages":"Q"})", "\"messages\" must be a list of messages");
  says(R"({"messages":[{"role":"user","content":"Q"}]})", "there is no message of the assistant");
  message(R"("A")", "message 2 of \"messages\" must be an object");
  message(R"({"content":"A"})", "message 2 of \"messages\" has no \"role\"");
  message(R"({"role":"robot","content":"A"})",
          "message 2 of \"messages\": unknown role \"robot\"; there are system, developer, user");
  message(R"({"role":3,"content":"A"})", "unknown role number");
  message(R"({"role":"assistant"})",
          "message 2 of \"messages\", of role assistant, has no \"content\"; leave the message");
  message(R"({"role":"assistant","text":"A"})",
          "message 2 of \"messages\" has \"text\" where \"content\" is expected");
  message(R"({"role":"assistant","value":"A"})", "has \"value\" where \"content\" is expected");
  message(R"({"from":"gpt","text":"A"})", "has \"text\" where \"value\" is expected");
  message(R"({"role":"assistant","content":["A",{"type":"image_url","image_url":{"url":"u"}}]})",
          "message 2 of \"messages\": part 2 of its content is not text");
  message(R"({"role":"assistant","content":5})", "must be a text or a list of parts, not number");
  message(R"({"role":"assistant","content":"A","weight":0.5})", "must be true or false, 1 or 0");
  message(R"({"role":"user","content":"A","train":true})", "only what the assistant writes");
  message(R"({"role":"assistant","tool_calls":[]})", "has no \"content\"");
  message(R"({"role":"assistant","tool_calls":{}})", "\"tool_calls\" must be a list of calls");
  says(R"({"instruction":"Q","output":5})", "\"output\" must be a text");
  says(R"({"instruction":"Q","input":5,"output":"A"})", "\"input\" must be a text");
  says(R"({"prompt":5,"completion":"A"})", "\"prompt\" must be a text, or a list of messages");
  says(R"({"prompt":"Q","completion":"A","tools":{}})", "\"tools\" must be a list");
  says(R"({"prompt":"Q","completion":"A","chat_template_kwargs":[]})", "must be an object");
}

TEST(ConversationReader, ReadsCompressedLinesWithTheirPlaces) {
  const std::string folder = TestFolder();
  WriteText(folder + "/a.jsonl", "{\"a\":1}\n\n{\"b\":\"\xff\\ud800\"}\n");
  WriteText(folder + "/b.jsonl.gz", GzipOf("{\"c\":3}\n"));
  WriteText(folder + "/c.jsonl.zst", ZstdOf("{\"d\":4}"));
  ConversationReader reader({folder + "/a.jsonl", folder + "/b.jsonl.gz", folder + "/c.jsonl.zst"});
  std::vector<std::string> lines, places;
  std::string line, place;
  while (reader.NextLine(&line, &place)) {
    lines.push_back(line);
    places.push_back(place.substr(folder.size()));
  }
  EXPECT_THAT(lines,
              ElementsAre(R"({"a":1})", "{\"b\":\"\uFFFD\\ufffd\"}", R"({"c":3})", R"({"d":4})"));
  EXPECT_THAT(places, ElementsAre("/a.jsonl:1", "/a.jsonl:3", "/b.jsonl.gz:1", "/c.jsonl.zst:1"));
  EXPECT_EQ(reader.bad_utf8(), 2);
  ConversationReader small({folder + "/a.jsonl"}, 4);
  EXPECT_THAT(MessageOf<InputError>([&] { small.NextLine(&line, &place); }),
              HasSubstr("/a.jsonl:1: a document of more than 4 bytes"));
}

}  // namespace
}  // namespace lockstep::data
