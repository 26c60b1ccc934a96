// Conversations as a data set: what is kept of a file, and what batches of it are.
#include "data/conversations/conversation_dataset.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/conversations/conversation_mixture.h"
#include "data/evaluation.h"
#include "data/loader.h"
#include "data/shared_datasets.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

class Conversations : public testing::Test {
 protected:
  Conversations() : folder_(TestFolder()), path_(folder_ + "/chat.jsonl") {
    const OrderedJson qwen =
        OrderedJson::parse(ReadFile(TestData("tokenizers/qwen2.json")))["tokenizer"];
    WriteText(folder_ + "/tokenizer.json", qwen.dump());
    WriteText(folder_ + "/chat_template.jinja", ReadFile(TestData("chat_templates/chatml.jinja")));
    options_ = {.path = path_,
                .tokenizer = folder_ + "/tokenizer.json",
                .val_fraction = 0,
                .block_size = 64};
    chat_.folders = {folder_};
  }

  // Conversation i asks about number i, so that rows tell which conversations they have.
  void WriteConversations(int64_t count) {
    std::mt19937 random(7);
    std::string lines;
    for (int64_t i = 0; i < count; ++i) {
      OrderedJson messages = OrderedJson::array();
      for (uint32_t turn = 0; turn <= random() % 2; ++turn) {
        messages.push_back({{"role", "user"}, {"content", StrCat("#", i, "?")}});
        messages.push_back(
            {{"role", "assistant"}, {"content", StrCat(i, std::string(random() % 9, '!'))}});
      }
      lines += OrderedJson{{"messages", messages}}.dump() + "\n";
    }
    WriteText(path_, lines);
  }

  ConversationDataset Open() { return OpenConversations(options_, chat_); }
  std::string ErrorOf() {
    return MessageOf<InputError>([&] { Open(); });
  }

  const std::string folder_, path_;
  DatasetOptions options_;
  ConversationOptions chat_;
};

// The conversations of a stream: their tokens, with those that are learnt negated.
std::multiset<std::vector<int32_t>> ConversationsIn(const Batch& batch) {
  std::multiset<std::vector<int32_t>> found;
  for (int64_t row = 0; row < batch.rows; ++row) {
    std::map<int32_t, std::vector<int32_t>> by_start;
    std::set<int32_t> learning;
    for (int64_t col = 0; col < batch.cols; ++col) {
      const auto at = static_cast<size_t>(row * batch.cols + col);
      const int32_t start = batch.first_key[at];
      const bool learnt = col > start && batch.targets[at - 1] != kIgnoreIndex;
      if (learnt) {
        EXPECT_EQ(batch.targets[at - 1], batch.inputs[at]);
        learning.insert(start);
      }
      by_start[start].push_back(learnt ? -1 - batch.inputs[at] : batch.inputs[at]);
      // A conversation's first token is no target of the one before.
      EXPECT_TRUE(col != start || col == 0 || batch.targets[at - 1] == kIgnoreIndex);
    }
    for (const int32_t start : learning) found.insert(by_start[start]);
  }
  return found;
}

Batch Rows(const TokenSource& source, int64_t block_size) {
  std::vector<int64_t> starts;
  for (int64_t at = 0; at + 1 < source.size(); at += block_size) starts.push_back(at);
  Batch batch;
  ReadBatch(source, starts, block_size, &batch, /*document_mask=*/true);
  return batch;
}

TEST_F(Conversations, AreTheSameWhereAnotherProcessHasEncodedThem) {
  WriteConversations(60);
  options_.val_fraction = 0.2;
  const ConversationDataset alone = Open();
  options_.shared = std::make_shared<SharedDatasets>();
  const ConversationDataset first = Open();
  const auto shared = options_.shared;
  options_.shared = std::make_shared<SharedDatasets>();
  *options_.shared = {.shares = false, .links = shared->links};
  RemoveTree(folder_);
  for (const ConversationDataset& data : {first, Open()}) {
    for (const auto stream : {&Dataset::train, &Dataset::val}) {
      const Batch got = Rows(*(data.dataset.*stream), 64),
                  want = Rows(*(alone.dataset.*stream), 64);
      EXPECT_TRUE(got.inputs == want.inputs && got.targets == want.targets);
      EXPECT_EQ(got.first_key, want.first_key);
    }
    EXPECT_EQ(data.dataset.note, alone.dataset.note);
    EXPECT_EQ(data.dataset.fingerprint, alone.dataset.fingerprint);
    EXPECT_EQ(data.dataset.tokenizer->ConfigJson(), alone.dataset.tokenizer->ConfigJson());
    EXPECT_EQ(data.counts.learnt, alone.counts.learnt);
    EXPECT_EQ(data.counts.most_tokens, alone.counts.most_tokens);
  }
}

TEST_F(Conversations, HasEveryConversationOnceWithItsAnswersLearnt) {
  WriteConversations(150);
  const ConversationDataset data = Open();
  const Batch packed = Rows(*data.dataset.train, 64);
  options_.block_size = 256;  // other rows, of the same conversations
  const ConversationDataset wide = Open();
  EXPECT_GT(wide.counts.tokens, wide.counts.rows * 256 * 9 / 10) << "rows are almost full";
  const auto again = ConversationsIn(Rows(*wide.dataset.train, 256));
  const auto all = ConversationsIn(packed);
  EXPECT_EQ(all.size(), 150);
  EXPECT_EQ(all, again);
  EXPECT_EQ(data.counts.conversations, 150);
  EXPECT_EQ(data.counts.rows, packed.rows);
  EXPECT_EQ(data.counts.learnt, packed.num_targets);
  int64_t tokens = 0;
  std::set<std::string> questions;
  for (const auto& conversation : all) {
    tokens += std::ssize(conversation);
    std::string answers, text;
    for (const int32_t id : conversation) {
      const int32_t token = id < 0 ? -1 - id : id;
      text += data.dataset.tokenizer->TokenText(token);
      if (id < 0) answers += data.dataset.tokenizer->TokenText(token);
    }
    const std::string number = text.substr(text.find('#') + 1, text.find('?') - text.find('#') - 1);
    EXPECT_TRUE(questions.insert(number).second) << number;
    EXPECT_THAT(answers, AllOf(StartsWith(number), testing::EndsWith("<|im_end|>"),
                               testing::Not(HasSubstr("?"))));
  }
  EXPECT_EQ(data.counts.tokens, tokens);
  EXPECT_THAT(data.dataset.note,
              HasSubstr(StrCat(": 150 conversations in ", packed.rows, " rows of 64 tokens")));
}

TEST_F(Conversations, ResumesAtAnyStepAndSharesAnEpochAmongRanks) {
  WriteConversations(90);
  const ConversationDataset data = Open();
  const int64_t rows = data.counts.rows;
  ASSERT_GT(rows, 12);
  const Sampler sampler(Order::kShuffled, 3, data.dataset.train->size(), 64);
  ASSERT_EQ(sampler.windows_per_epoch(), rows);
  const BatchLayout layout{.batch_size = 1, .micro_batches = 4, .document_mask = true};
  std::vector<Batch> batches;
  Loader uninterrupted(data.dataset.train, sampler, layout);
  for (int64_t i = 0; i < 2 * rows; ++i) batches.push_back(uninterrupted.Next());
  for (int64_t step = 0; 4 * step < 2 * rows; ++step) {
    Loader resumed(data.dataset.train, sampler, layout, step);
    for (auto i = static_cast<size_t>(4 * step); i < batches.size(); ++i) {
      const Batch& batch = resumed.Next();
      ASSERT_EQ(batch.inputs, batches[i].inputs);
      ASSERT_EQ(batch.targets, batches[i].targets);
      ASSERT_EQ(batch.first_key, batches[i].first_key);
      ASSERT_EQ(batch.step_targets, batches[i].step_targets);
    }
  }
  // Each epoch has every conversation once.
  for (const int64_t epoch : {0, 1}) {
    std::multiset<std::vector<int32_t>> seen;
    for (int64_t i = epoch * rows; i < (epoch + 1) * rows; ++i) {
      seen.merge(ConversationsIn(batches[static_cast<size_t>(i)]));
    }
    EXPECT_EQ(seen, ConversationsIn(Rows(*data.dataset.train, 64)));
  }
  // Ranks take the same micro-batches, and each knows the targets of all.
  for (const int64_t ranks : {2, 4}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      BatchLayout own = layout;
      for (int64_t m = rank; m < 4; m += ranks) own.micro_order.push_back(m);
      Loader loader(data.dataset.train, sampler, own);
      for (int i = 0; i < 12; ++i) {
        const Batch& batch = loader.Next();
        const auto at = static_cast<size_t>(4 * batch.step + batch.micro_batch);
        ASSERT_EQ(batch.targets, batches[at].targets);
        ASSERT_EQ(batch.step_targets, batches[at].step_targets);
      }
    }
  }
  for (size_t step = 0; 4 * step + 3 < batches.size(); ++step) {
    int64_t targets = 0;
    for (size_t m = 0; m < 4; ++m) targets += batches[4 * step + m].num_targets;
    ASSERT_EQ(batches[4 * step].step_targets, targets);
  }
}

// Of a file that is sorted by subject both parts have every subject.
TEST_F(Conversations, ValidatesOnConversationsFromAllOfTheFile) {
  WriteConversations(60);
  options_.val_fraction = 0.25;
  const Dataset dataset = Open().dataset;
  const auto train = ConversationsIn(Rows(*dataset.train, 64));
  const auto val = ConversationsIn(Rows(*dataset.val, 64));
  EXPECT_EQ(train.size(), 45);
  EXPECT_EQ(val.size(), 15);
  const std::string shown = ShowRow(*dataset.val, *dataset.tokenizer, 0, 64, "", "");
  const std::string first = shown.substr(shown.find('#') + 1);
  EXPECT_LT(std::stoi(first), 45) << "the file's tail: " << shown;
  options_.val_fraction = 0;
  const auto all = ConversationsIn(Rows(*Open().dataset.train, 64));
  auto both = train;
  both.insert(val.begin(), val.end());
  EXPECT_EQ(both, all);
  const EvalBatches batches(dataset.val, 64, 3, 0, true);
  int64_t targets = 0;
  Batch batch;
  for (int64_t i = 0; i < batches.size(); ++i) {
    batches.Read(i, &batch);
    targets += batch.num_targets;
  }
  EXPECT_EQ(batches.num_targets(), targets);
  EXPECT_EQ(Rows(*dataset.val, 64).num_targets, targets);
}

// In a mixture a source's samples are those that it has alone.
TEST_F(Conversations, MixWithTextAndWithEachOther) {
  WriteConversations(60);
  options_.val_fraction = 0.25;
  const ConversationDataset alone = Open();
  std::string text;
  for (int line = 0; line < 200; ++line) text += StrCat("Line ", line, ".\n");
  WriteText(folder_ + "/plain.txt", text);
  WriteText(folder_ + "/more.jsonl", R"({"prompt":"Hi","completion":"Hello"})"
                                     "\n"
                                     R"({"prompt":"a","completion":"b"})");
  DatasetOptions mixed = options_;
  mixed.path.clear();
  mixed.mix = StrCat(path_, ":2,", folder_, "/plain.txt:1,", folder_, "/more.jsonl:1");
  const ConversationDataset all = OpenConversationMixture(
      mixed, chat_, [](const std::string& path) { return path.ends_with(".jsonl"); });
  DatasetOptions other = options_;
  other.path = folder_ + "/more.jsonl";
  const ConversationCounts more = OpenConversations(other, chat_).counts;
  EXPECT_EQ(all.counts.conversations, 62);
  EXPECT_EQ(all.counts.learnt, alone.counts.learnt + more.learnt);
  EXPECT_EQ(all.counts.rows, alone.counts.rows + more.rows);
  EXPECT_THAT(all.dataset.note, AllOf(HasSubstr("60 conversations"), HasSubstr("2 conversations")));
  EXPECT_THAT(all.dataset.tokenizer->ConfigJson(), HasSubstr("im_start"));
  const BatchLayout layout{.batch_size = 1, .document_mask = true};
  Loader loader(all.dataset.train, MakeSampler(all.dataset, Order::kShuffled, 3, 64), layout);
  Loader chat(alone.dataset.train, MakeSampler(alone.dataset, Order::kShuffled, 3, 64), layout);
  const MixtureSchedule schedule({2, 1, 1});
  for (int64_t sample = 0; sample < 200; ++sample) {
    const Batch& batch = loader.Next();
    switch (schedule(sample).source) {
      case 0: {
        const Batch& want = chat.Next();
        ASSERT_EQ(batch.inputs, want.inputs);
        ASSERT_EQ(batch.targets, want.targets);
        ASSERT_EQ(batch.first_key, want.first_key);
        break;
      }
      case 1:
        ASSERT_EQ(batch.num_targets, 64);
        ASSERT_THAT(batch.first_key, Each(0)) << "one document";
        break;
      default:
        ASSERT_EQ(ConversationsIn(batch).size(), 1u);
    }
  }
  // Validation: rows stay rows, and each target of a source is there once.
  mixed.mix = StrCat(folder_, "/plain.txt:1,", path_, ":1");
  const Dataset dataset = OpenConversationMixture(mixed, chat_, [&](const std::string& path) {
                            return path == path_;
                          }).dataset;
  EXPECT_EQ(ConversationsIn(Rows(*ConversationRows(dataset), 64)),
            ConversationsIn(Rows(*alone.dataset.train, 64)));
  DatasetOptions plain = options_;
  plain.path = folder_ + "/plain.txt";
  const int64_t of_text = OpenDataset(plain).val->size() - 1;
  const Batch val = Rows(*dataset.val, 64);
  const int64_t of_chat = Rows(*alone.dataset.val, 64).num_targets;
  EXPECT_LE(val.num_targets, of_text + of_chat);
  EXPECT_GE(val.num_targets, of_text + of_chat - 1) << "the last of the text may be left out";
  const auto found = ConversationsIn(val);
  for (const auto& conversation : ConversationsIn(Rows(*alone.dataset.val, 64))) {
    EXPECT_TRUE(found.contains(conversation));
  }
}

TEST_F(Conversations, LongConversationsFollowTheRule) {
  std::string lines;
  for (const int64_t words : {1, 500, 1}) {
    std::string question = "Say", answer = "so";
    for (int64_t i = 0; i < words; ++i) question += " it";
    lines += OrderedJson{{"prompt", question}, {"completion", answer}}.dump() + "\n";
  }
  lines += OrderedJson{{"prompt", "Hi"}, {"completion", std::string(300, '#')}}.dump() + "\n";
  lines +=
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","train":false}]})";
  WriteText(path_, lines);
  ConversationCounts counts = Open().counts;
  EXPECT_EQ(counts.conversations, 2);
  EXPECT_EQ(counts.too_long, 2);
  EXPECT_EQ(counts.not_learnt, 1);
  EXPECT_GT(counts.most_tokens, 500);
  EXPECT_THAT(Open().dataset.note,
              AllOf(HasSubstr("; 2 of more than 64 tokens left out (the longest has "),
                    HasSubstr("; 1 left out because nothing is learnt")));
  chat_.if_long = "cut";
  const ConversationDataset cut = Open();
  EXPECT_EQ(cut.counts.conversations, 3);
  EXPECT_EQ(cut.counts.too_long, 2);
  EXPECT_EQ(cut.counts.not_learnt, 2) << "one because its answer was cut off";
  EXPECT_THAT(cut.dataset.note, HasSubstr("; 2 of more than 64 tokens cut"));
  chat_.if_long = "error";
  EXPECT_THAT(ErrorOf(), AllOf(StartsWith(path_ + ":2: this conversation has "),
                               HasSubstr("a row has 64"), HasSubstr("--data.if_long=drop or cut")));
}

TEST_F(Conversations, RowsWithEmptyMessagesAreCountedAndLeftOut) {
  WriteText(path_, R"({"prompt":"Hi","completion":"Hello"})"
                   "\n"
                   R"({"prompt":"Hi","completion":"\n\n"})"
                   "\n"
                   R"({"instruction":"","input":"","output":"A \ud800"})"
                   "\n"
                   R"({"messages":[{"role":"system","content":""},{"role":"user","content":"a"},)"
                   R"({"role":"assistant","content":"b"}]})");
  const ConversationDataset data = Open();
  EXPECT_EQ(data.counts.conversations, 2);
  EXPECT_EQ(data.counts.empty, 2);
  EXPECT_THAT(data.dataset.note,
              HasSubstr("; 2 left out because of an empty message (the first: " + path_ + ":2)" +
                        "; 1 malformed parts of UTF-8 became U+FFFD"));
  WriteText(path_, R"({"prompt":"Hi","completion":""})");
  EXPECT_THAT(ErrorOf(), HasSubstr("0 conversations are left, and without 1 with an empty"));
}

TEST_F(Conversations, TheTokenizerCarriesTheTemplate) {
  WriteConversations(4);
  const Dataset dataset = Open().dataset;
  const OrderedJson config = OrderedJson::parse(dataset.tokenizer->ConfigJson());
  EXPECT_EQ(config["chat_template"], ReadFile(folder_ + "/chat_template.jinja"));
  // From such a folder, as a checkpoint is one, the data are the same.
  const std::string checkpoint = folder_ + "/checkpoint";
  MakeDirectories(checkpoint);
  WriteText(checkpoint + "/tokenizer.json", dataset.tokenizer->ToJson());
  WriteText(checkpoint + "/tokenizer_config.json", dataset.tokenizer->ConfigJson());
  options_.tokenizer = checkpoint;
  chat_.folders = {folder_ + "/absent", checkpoint};
  const Dataset again = Open().dataset;
  EXPECT_EQ(again.fingerprint, dataset.fingerprint);
  EXPECT_EQ(again.tokenizer->ConfigJson(), dataset.tokenizer->ConfigJson());
  chat_.chat_template = TestData("chat_templates/qwen2_5.jinja");
  EXPECT_NE(Open().dataset.fingerprint, dataset.fingerprint);
}

TEST_F(Conversations, RowsWithToolsTakeTheirTemplateAlsoFromACheckpoint) {
  WriteText(path_, R"({"prompt":"Hi","completion":"A","tools":[{"name":"f"}]})"
                   "\n"
                   R"({"prompt":"Hi","completion":"B"})");
  MakeDirectories(folder_ + "/additional_chat_templates");
  WriteText(folder_ + "/additional_chat_templates/tool_use.jinja",
            "{% for m in messages %}{{ tools | tojson }}{{ m.content }}<|im_end|>{% endfor %}");
  const Dataset dataset = Open().dataset;
  const std::string checkpoint = folder_ + "/checkpoint";
  MakeDirectories(checkpoint);
  WriteText(checkpoint + "/tokenizer.json", dataset.tokenizer->ToJson());
  WriteText(checkpoint + "/tokenizer_config.json", dataset.tokenizer->ConfigJson());
  options_.tokenizer = checkpoint;
  chat_.folders = {checkpoint};
  const Dataset again = Open().dataset;
  EXPECT_EQ(again.fingerprint, dataset.fingerprint);
  EXPECT_EQ(again.tokenizer->ConfigJson(), dataset.tokenizer->ConfigJson());
  const auto row = [&] { return ShowRow(*again.train, *again.tokenizer, 0, 64, "(", ")"); };
  EXPECT_THAT(row(), HasSubstr(R"([{"name": "f"}]Hi<|im_end|>([{"name": "f"}]A<|im_end|>))"));
  EXPECT_THAT(row(), HasSubstr("<|im_start|>assistant\n(B<|im_end|>)"));
}

TEST_F(Conversations, ShowsARowWithItsMask) {
  WriteText(path_, R"({"prompt":"Hi","completion":"Hello"})"
                   "\n"
                   R"({"prompt":"a","completion":"b"})");
  const Dataset dataset = Open().dataset;
  EXPECT_EQ(ShowRow(*dataset.train, *dataset.tokenizer, 0, 64, "[", "]"),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Hello<|im_end|>]\n"
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n[b<|im_end|>]\n");
}

TEST_F(Conversations, TellsConversationsFromText) {
  const auto holds = [&](const std::string& name, const std::string& contents) {
    WriteText(folder_ + "/" + name, contents);
    return HoldsConversations(folder_ + "/" + name, "text");
  };
  EXPECT_TRUE(holds("a.jsonl", "\n{\"messages\":[]}\n"));
  EXPECT_TRUE(holds("b.json", "{\"instruction\":\"\",\"output\":\"\"}"));
  EXPECT_THAT(
      MessageOf<InputError>([&] { holds("c.jsonl", "{\"text\":\"x\",\"messages\":[]}"); }),
      AllOf(StartsWith(folder_ + "/c.jsonl:1: this row has the text field \"text\" and is also a "),
            HasSubstr("--data.format=chat or --data.format=text")));
  EXPECT_TRUE(holds("h.jsonl", "{\"text\":null,\"messages\":[]}"));
  EXPECT_THAT(MessageOf<InputError>([] { HoldsConversations("-", "text"); }),
              HasSubstr("standard input may be text or conversations: say which with"));
  EXPECT_FALSE(holds("d.jsonl", "{\"text\":\"x\"}"));
  EXPECT_FALSE(holds("e.jsonl", "{\"messages\":"));
  EXPECT_FALSE(holds("f.jsonl", ""));
  EXPECT_FALSE(holds("g.txt", "{\"messages\":[]}"));
  EXPECT_FALSE(HoldsConversations("", "text"));
  EXPECT_FALSE(HoldsConversations(folder_ + "/absent.jsonl", "text"));
}

TEST_F(Conversations, ErrorsSayWhatToDo) {
  WriteText(path_, R"({"prompt":"Hi","completion":"Hello"})"
                   "\n"
                   R"({"prompt":"Hi"})"
                   "\n{");
  EXPECT_THAT(ErrorOf(), StartsWith(path_ + ":2: this row is not a conversation: expected"));
  WriteConversations(3);
  options_.vocab_size = 50;
  EXPECT_THAT(ErrorOf(), HasSubstr("model.vocab_size is 50"));
  options_.vocab_size = 0;
  options_.block_size = 8;
  EXPECT_THAT(ErrorOf(), AllOf(HasSubstr(": 0 conversations are left, without 3 of more than 8 "
                                         "tokens (the longest has "),
                               HasSubstr("--model.block_size"), HasSubstr("--data.val_fraction")));
  options_.block_size = 64;
  options_.val_fraction = 0.1;
  WriteConversations(1);
  EXPECT_THAT(ErrorOf(), HasSubstr(": 1 conversations are left; too few for training and "));
  options_.tokenizer = "";
  EXPECT_THAT(ErrorOf(), HasSubstr("conversations need a tokenizer"));
  options_.tokenizer = folder_ + "/tokenizer.json";
  RemoveTree(folder_ + "/chat_template.jinja");
  EXPECT_THAT(ErrorOf(), AllOf(HasSubstr("there is none in " + folder_),
                               HasSubstr("--data.chat_template=FILE")));
}

}  // namespace
}  // namespace lockstep::data
