// Many epochs of a small file of conversations, played quickly: batches, resumed loaders and data
// sets that are opened again. Heap, descriptors and threads must be the same at the end as early
// on. By hand:
//
//   LONG_LIFE_EPOCHS=1000000 bazel-bin/tests/data/conversations_long_life_test
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "core/io/file.h"
#include "core/io/json.h"
#include "data/conversations/conversation_dataset.h"
#include "data/loader.h"
#include "tests/data/data_test_util.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::data {
namespace {
using test::kSanitized;
using test::ProcessState;

constexpr int64_t kBlock = 96;

// The most of some epochs.
struct Peak {
  int64_t heap_bytes = 0;
  ProcessState process;

  void Add() {
    heap_bytes = std::max(heap_bytes, static_cast<int64_t>(mallinfo2().uordblks));
    const ProcessState now = test::ProcessStateOf();
    process.descriptors = std::max(process.descriptors, now.descriptors);
    process.threads = std::max(process.threads, now.threads);
    process.resident_bytes = std::max(process.resident_bytes, now.resident_bytes);
  }
};

std::string WriteConversations(const std::string& folder) {
  const OrderedJson qwen =
      OrderedJson::parse(ReadFile(TestData("tokenizers/qwen2.json")))["tokenizer"];
  WriteText(folder + "/tokenizer.json", qwen.dump());
  WriteText(folder + "/chat_template.jinja", ReadFile(TestData("chat_templates/chatml.jinja")));
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    OrderedJson messages = OrderedJson::array();
    for (int turn = 0; turn <= i % 3; ++turn) {
      messages.push_back({{"role", "user"}, {"content", StrCat("#", i, "?")}});
      messages.push_back({{"role", "assistant"}, {"content", StrCat(i, "!")}});
    }
    lines += OrderedJson{{"messages", messages}}.dump() + "\n";
  }
  WriteText(folder + "/chat.jsonl", lines);
  return folder + "/chat.jsonl";
}

TEST(ConversationsLongLife, NothingGrowsWithTheEpochs) {
  const char* const given = std::getenv("LONG_LIFE_EPOCHS");
  const int64_t epochs = given != nullptr ? std::atoll(given) : kSanitized ? 200 : 2000;
  ASSERT_GE(epochs, 20);
  const std::string folder = TestFolder();
  const DatasetOptions options{.path = WriteConversations(folder),
                               .tokenizer = folder + "/tokenizer.json",
                               .val_fraction = 0,
                               .block_size = kBlock};
  std::optional<ConversationDataset> data;
  std::optional<Loader> loader;
  Peak early, late;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    // Now and then as a run that was stopped goes on, with the data in memory or read again.
    if (epoch % 100 == 0) {
      loader.reset();
      data = OpenConversations(options, {.folders = {folder}});
    }
    const int64_t rows = data->counts.rows;
    if (epoch % 10 == 0) {
      const Sampler sampler(Order::kShuffled, 3, data->dataset.train->size(), kBlock);
      loader.emplace(data->dataset.train, sampler,
                     BatchLayout{.batch_size = 1, .document_mask = true}, epoch * rows);
    }
    int64_t learnt = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const Batch& batch = loader->Next();
      ASSERT_EQ(batch.step, epoch * rows + i);
      learnt += batch.num_targets;
    }
    ASSERT_EQ(learnt, data->counts.learnt) << "epoch " << epoch;
    // Tenths of the run: the second, and the last.
    const int64_t tenth = 10 * epoch / epochs;
    if (tenth == 1) early.Add();
    if (tenth == 9) late.Add();
  }
  std::printf("early: %ld KiB of heap, %s; late: %ld KiB, %s\n", early.heap_bytes >> 10,
              testing::PrintToString(early.process).c_str(), late.heap_bytes >> 10,
              testing::PrintToString(late.process).c_str());
  EXPECT_EQ(late.process.threads, early.process.threads);
  EXPECT_EQ(late.process.descriptors, early.process.descriptors);
  if (kSanitized) return;
  // How far the loader's thread has read, and what malloc keeps for it, makes some 35 KiB from run
  // to run. 64 bytes an epoch, or 4 a batch, would be more than this.
  EXPECT_LE(late.heap_bytes, early.heap_bytes + (96 << 10));
  EXPECT_LE(late.process.resident_bytes, early.process.resident_bytes + (4 << 20));
}

}  // namespace
}  // namespace lockstep::data
