// Pairs of answers: the formats of their rows, how they lie in a data set, and what is refused.
#include "data/conversations/preference_dataset.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/batch.h"
#include "data/conversations/encode_rows.h"
#include "data/shared_datasets.h"
#include "tests/data/data_test_util.h"
#include "tests/message_of.h"

namespace lockstep::data {
namespace {
using test::MessageOf;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

PreferencePair Parse(const std::string& row) {
  return ToPreferencePair(ParseRow(row, "p.jsonl:3"), "p.jsonl:3");
}
std::string Refused(const std::string& row) {
  return MessageOf<InputError>([&] { Parse(row); });
}

// "user: hi | assistant: yes*", where * marks what is learnt.
std::string Brief(const Conversation& conversation) {
  std::string text;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const OrderedJson& message = conversation.messages[i];
    text += StrCat(i > 0 ? " | " : "", message["role"].get<std::string>(), ": ",
                   message["content"].get<std::string>(), conversation.learnt[i] ? "*" : "");
  }
  return text;
}

TEST(PreferencePair, AnswersOfTexts) {
  const PreferencePair pair =
      Parse(R"({"system": "be brief", "prompt": "hi", "chosen": "yes", "rejected": "no"})");
  EXPECT_EQ(Brief(pair.chosen), "system: be brief | user: hi | assistant: yes*");
  EXPECT_EQ(Brief(pair.rejected), "system: be brief | user: hi | assistant: no*");
  EXPECT_EQ(pair.rejected.place, "p.jsonl:3");
}

TEST(PreferencePair, AnswersOfLists) {
  const PreferencePair pair = Parse(R"({
      "prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                 {"role": "user", "content": "c"}],
      "chosen": [{"role": "assistant", "content": "yes"}],
      "rejected": [{"role": "assistant", "content": "no"}],
      "tools": [{"name": "f"}], "messages": "another column"})");
  EXPECT_EQ(Brief(pair.chosen), "user: a | assistant: b | user: c | assistant: yes*");
  EXPECT_EQ(Brief(pair.rejected), "user: a | assistant: b | user: c | assistant: no*");
  EXPECT_EQ(pair.chosen.variables["tools"].size(), 1u);
}

TEST(PreferencePair, APromptThatBothBeginWith) {
  const std::string lists = R"(
      "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                 {"role": "user", "content": "c"}, {"role": "assistant", "content": "yes"}],
      "rejected": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"},
                   {"from": "human", "value": "c"}, {"from": "gpt", "value": "no"}])";
  // UltraFeedback repeats it as a text.
  for (const std::string prompt : {"", R"("prompt": "a",)", R"("prompt": null,)"}) {
    const PreferencePair pair = Parse("{" + prompt + lists + "}");
    EXPECT_EQ(Brief(pair.chosen), "user: a | assistant: b | user: c | assistant: yes*");
    EXPECT_EQ(Brief(pair.rejected), "user: a | assistant: b | user: c | assistant: no*");
  }
}

TEST(PreferencePair, ATextAsThePromptOfLists) {
  const PreferencePair pair = Parse(R"({"prompt": "a",
      "chosen": [{"role": "assistant", "content": "yes"}],
      "rejected": [{"role": "assistant", "content": "no"}]})");
  EXPECT_EQ(Brief(pair.chosen), "user: a | assistant: yes*");
}

// The same answer twice is a pair without a preference.
TEST(PreferencePair, EqualAnswers) {
  const PreferencePair pair = Parse(R"({
      "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
      "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(Brief(pair.chosen), "user: a | assistant: b*");
  EXPECT_EQ(Brief(pair.rejected), Brief(pair.chosen));
}

TEST(PreferencePair, RefusesWhatIsNoPair) {
  EXPECT_THAT(Refused(R"({"messages": []})"),
              AllOf(StartsWith("p.jsonl:3: this row is not a pair"), HasSubstr("\"rejected\""),
                    HasSubstr("; found \"messages\"")));
  EXPECT_THAT(
      Refused(R"({"chosen": "yes", "rejected": "no"})"),
      HasSubstr("p.jsonl:3: without a \"prompt\", \"chosen\" and \"rejected\" must be lists"));
  EXPECT_THAT(Refused(R"({"prompt": "a", "chosen": "yes", "rejected": 7})"),
              HasSubstr("\"rejected\" must be a text, or a list of messages"));
  EXPECT_THAT(Refused(R"({"prompt": "a", "chosen": "yes",
                          "rejected": [{"role": "narrator", "content": "no"}]})"),
              HasSubstr("message 1 of \"rejected\": unknown role"));
  EXPECT_THAT(Refused(R"({"prompt": "a", "chosen": "yes",
                          "rejected": [{"role": "user", "content": "no"}]})"),
              HasSubstr("no message of the assistant"));
  EXPECT_THAT(Refused(R"({
      "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                 {"role": "user", "content": "c"}],
      "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                   {"role": "user", "content": "d"}]})"),
              HasSubstr("chosen ends without an answer of the assistant after the 2 messages"));
  EXPECT_THAT(Refused(R"({"chosen": [], "rejected": []})"), HasSubstr("not empty"));
}

// ---- The data set. ----

class PreferenceDatasetTest : public testing::Test {
 protected:
  static constexpr int64_t kWidth = 64;
  static constexpr const char *kChosen[] = {"one", "two", "three", "four"},
                              *kRejected[] = {"eins", "zwei", "drei", "vier"};

  PreferenceDatasetTest() {
    options_.path = JoinPath(testing::TempDir(), "pairs.jsonl");
    options_.block_size = kWidth;
    options_.val_fraction = 0.25;
    const OrderedJson file = OrderedJson::parse(ReadFile(TestData("tokenizers/qwen2.json")));
    options_.loaded_tokenizer = Tokenizer::FromJson(file["tokenizer"].dump(), "qwen2");
    chat_.chat_template = TestData("chat_templates/chatml.jinja");
  }
  static std::string Row(const std::string& prompt, const std::string& chosen,
                         const std::string& rejected) {
    return OrderedJson{{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}.dump() +
           "\n";
  }
  PreferenceDataset Open(const std::string& rows) {
    WriteFileAtomically(options_.path, rows);
    return OpenPreferences(options_, chat_);
  }
  std::string Fails(const std::string& rows) {
    return MessageOf<InputError>([&] { Open(rows); });
  }
  static std::string Four() {
    std::string rows;
    for (int i = 0; i < 4; ++i) rows += Row(std::to_string(i + 1), kChosen[i], kRejected[i]);
    return rows;
  }

  DatasetOptions options_;
  ConversationOptions chat_;
};

TEST_F(PreferenceDatasetTest, AWindowIsAPair) {
  const PreferenceDataset opened = Open(Four());
  const Dataset& dataset = opened.dataset;
  EXPECT_EQ(opened.counts.pairs, 4);
  EXPECT_EQ(dataset.train->size(), 3 * 2 * kWidth + 1);
  ASSERT_NE(dataset.val, nullptr);
  EXPECT_EQ(dataset.val->size(), 2 * kWidth + 1);
  EXPECT_THAT(dataset.note, HasSubstr("3 pairs of answers to train on and 1 held out"));
  const RowSplit split = SplitRows(4, 0.25);
  const auto expect = [&](const TokenSource& source, int64_t at, int64_t pair) {
    const std::string user = StrCat("<|im_start|>user\n", pair + 1, "<|im_end|>\n");
    EXPECT_EQ(ShowPair(source, *dataset.tokenizer, at, kWidth, "[", "]"),
              StrCat("chosen:\n", user, "<|im_start|>assistant\n[", kChosen[pair],
                     "<|im_end|>]\nrejected:\n", user, "<|im_start|>assistant\n[", kRejected[pair],
                     "<|im_end|>]"));
  };
  for (int64_t i = 0; i < 3; ++i) expect(*dataset.train, i, split.train[i]);
  expect(*dataset.val, 0, split.val[0]);
  // What any part of the stream says does not depend on how it is read.
  std::vector<int32_t> whole(dataset.train->size()), part(17);
  dataset.train->Read(0, whole);
  for (int64_t at = 0; at + 17 <= std::ssize(whole); at += 5) {
    dataset.train->Read(at, part);
    EXPECT_TRUE(std::ranges::equal(part, std::span(whole).subspan(at, 17))) << at;
  }
}

TEST_F(PreferenceDatasetTest, IsTheSameWhereAnotherProcessHasEncodedIt) {
  const PreferenceDataset alone = Open(Four());
  options_.shared = std::make_shared<SharedDatasets>();
  const PreferenceDataset first = Open(Four());
  const auto shared = options_.shared;
  options_.shared = std::make_shared<SharedDatasets>();
  *options_.shared = {.shares = false, .links = shared->links};
  for (const PreferenceDataset& data : {first, Open("nothing that is read")}) {
    for (const auto stream : {&Dataset::train, &Dataset::val}) {
      const TokenSource &got = *(data.dataset.*stream), &want = *(alone.dataset.*stream);
      EXPECT_EQ(All(got), All(want));
      std::vector<int32_t> learnt(want.size()), as_before(want.size());
      got.ReadLossMask(0, learnt);
      want.ReadLossMask(0, as_before);
      EXPECT_EQ(learnt, as_before);
    }
    EXPECT_EQ(data.dataset.note, alone.dataset.note);
    EXPECT_EQ(data.dataset.fingerprint, alone.dataset.fingerprint);
    EXPECT_EQ(data.counts.learnt, alone.counts.learnt);
  }
}

// A batch's targets are the tokens of answers, each under its row.
TEST_F(PreferenceDatasetTest, BatchesHaveTargetsOfAnswersOnly) {
  const PreferenceDataset opened = Open(Four());
  Batch batch;
  const int64_t starts[] = {0, 2 * 2 * kWidth};
  ReadBatch(*opened.dataset.train, starts, 2 * kWidth, &batch);
  std::vector<std::string> answers;
  for (int64_t row = 0; row < 4; ++row) {
    std::vector<int32_t> answer;
    for (int64_t i = row * kWidth; i < (row + 1) * kWidth; ++i) {
      if (batch.targets[i] == kIgnoreIndex) continue;
      answer.push_back(batch.targets[i]);
      const bool inside = (i + 1) % kWidth != 0;
      EXPECT_TRUE(inside && batch.inputs[i + 1] == batch.targets[i]) << i;
    }
    answers.push_back(opened.dataset.tokenizer->Decode(answer));
  }
  const std::vector<int64_t> pairs = SplitRows(4, 0.25).train;
  const std::string end = "<|im_end|>";
  EXPECT_THAT(answers, ElementsAre(kChosen[pairs[0]] + end, kRejected[pairs[0]] + end,
                                   kChosen[pairs[2]] + end, kRejected[pairs[2]] + end));
}

TEST_F(PreferenceDatasetTest, LongPairsAreCountedAndLeftOut) {
  const std::string rows = Four() + Row("5", "five", std::string(200, 'x')) + Row("6", "a", "b") +
                           Row("7", "c", "d") + Row("8", "e", "f");
  const PreferenceDataset dropped = Open(rows);
  EXPECT_EQ(dropped.counts.pairs, 7);
  EXPECT_EQ(dropped.counts.too_long, 1);
  EXPECT_GT(dropped.counts.most_tokens, kWidth);
  EXPECT_THAT(dropped.dataset.note, HasSubstr("; 1 of more than 64 tokens left out"));
  chat_.if_long = "cut";
  EXPECT_EQ(Open(rows).counts.pairs, 8);
  chat_.if_long = "error";
  EXPECT_THAT(Fails(rows), HasSubstr("pairs.jsonl:5: an answer with its prompt has "));
}

// Their answers have no place.
TEST_F(PreferenceDatasetTest, PromptsThatFillTheRowAreCountedAndLeftOut) {
  chat_.if_long = "cut";
  const PreferenceDataset opened = Open(Four() + Row(std::string(300, 'y'), "five", "six"));
  EXPECT_EQ(opened.counts.pairs, 4);
  EXPECT_EQ(opened.counts.not_learnt, 1);
  EXPECT_THAT(opened.dataset.note, HasSubstr("1 left out because nothing of an answer is learnt"));
}

TEST_F(PreferenceDatasetTest, ErrorsSayWhereAndWhat) {
  EXPECT_THAT(Fails(Four() + "{\"prompt\": \"5\"}\n"),
              HasSubstr("pairs.jsonl:5: this row is not a pair of answers"));
  EXPECT_THAT(Fails(Four() + "{oops\n"), HasSubstr("pairs.jsonl:5: not valid JSON"));
  EXPECT_THAT(Fails(Row("1", "one", "eins")),
              AllOf(HasSubstr("1 pairs of answers are there"), HasSubstr("--data.val_fraction")));
  options_.vocab_size = 3;
  EXPECT_THAT(Fails(Four()), HasSubstr("but model.vocab_size is 3"));
  options_.path = "";
  EXPECT_THAT(MessageOf<InputError>([&] { OpenPreferences(options_, chat_); }),
              HasSubstr("name JSONL files of rows with prompt, chosen and rejected"));
}

TEST_F(PreferenceDatasetTest, EqualAndEmptyAnswersAreCountedAndLeftOut) {
  const PreferenceDataset opened =
      Open(Four() + Row("5", "five", "five") + Row("6", "", "six") + Row("7", "a", "b"));
  EXPECT_EQ(opened.counts.pairs, 5);
  EXPECT_EQ(opened.counts.equal, 1);
  EXPECT_EQ(opened.counts.empty, 1);
  EXPECT_THAT(opened.dataset.note,
              AllOf(HasSubstr("; 1 left out because both answers are the same"),
                    HasSubstr("; 1 left out because of an empty message")));
  // What is cut off may have been all that differed.
  chat_.if_long = "cut";
  const std::string same(200, 'x');
  EXPECT_EQ(Open(Four() + Row("8", same + " y", same + " z")).counts.equal, 1);
}

TEST_F(PreferenceDatasetTest, TheFingerprintIsThatOfTokensAndMasks) {
  const std::string first = Open(Four()).dataset.fingerprint;
  EXPECT_EQ(Open(Four()).dataset.fingerprint, first);
  EXPECT_NE(Open(Four() + Row("5", "five", "fuenf")).dataset.fingerprint, first);
}

}  // namespace
}  // namespace lockstep::data
