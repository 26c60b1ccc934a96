// Where documents begin in sources of tokens, and in the batches that are read from them.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.h"
#include "data/batch.h"
#include "data/evaluation.h"
#include "data/loader.h"
#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Tokens that come with an index of their documents.
class IndexedTokens : public MemoryTokens {
 public:
  IndexedTokens(std::span<const int32_t> tokens, std::vector<uint64_t> starts)
      : MemoryTokens(tokens), starts_(std::move(starts)) {}

 private:
  std::span<const uint64_t> document_starts() const override { return starts_; }
  std::vector<uint64_t> starts_;
};

std::vector<int32_t> Starts(const TokenSource& source, int64_t offset, int64_t count) {
  std::vector<int32_t> starts(count, -7);
  source.ReadDocumentStarts(offset, starts);
  return starts;
}

TEST(DocumentsTest, ATokenSeparatesThemBeforeOrAfter) {
  const auto tokens = std::make_shared<MemoryTokens>(std::vector<int32_t>{9, 1, 2, 9, 9, 3, 9});
  EXPECT_FALSE(tokens->has_documents());
  const SeparatedTokens llmc(tokens, 9, Separator::kFirst);
  EXPECT_TRUE(llmc.has_documents());
  EXPECT_THAT(Starts(llmc, 0, 7), ElementsAre(1, 0, 0, 1, 1, 0, 1));
  EXPECT_THAT(Starts(llmc, 2, 3), ElementsAre(0, 1, 1));
  EXPECT_EQ(All(llmc), All(*tokens));
  const SeparatedTokens nanogpt(tokens, 9, Separator::kLast);
  EXPECT_THAT(Starts(nanogpt, 0, 7), ElementsAre(1, 1, 0, 0, 1, 1, 0));
  EXPECT_THAT(Starts(nanogpt, 1, 3), ElementsAre(1, 0, 0));
  EXPECT_THAT(Starts(nanogpt, 7, 0), ElementsAre());
}

TEST(DocumentsTest, UnknownOnesAreAnError) {
  const auto tokens = std::make_shared<MemoryTokens>(std::vector<int32_t>{1, 2, 3});
  EXPECT_THAT(MessageOf<ArgumentError>([&] { Starts(*tokens, 0, 3); }),
              HasSubstr("it is not known where the documents of these tokens begin"));
  const SeparatedTokens known(tokens, 2, Separator::kFirst);
  EXPECT_THAT(MessageOf<ArgumentError>([&] { Starts(known, 2, 2); }),
              HasSubstr("cannot read 2 tokens from position 2 of 3"));
  EXPECT_THAT(MessageOf<ArgumentError>([&] {
                Loader(tokens, Sampler(Order::kSequential, 1, 3, 2), {.document_mask = true});
              }),
              HasSubstr("a loader with document_mask needs a source that knows"));
  EXPECT_THAT(MessageOf<ArgumentError>([&] { EvalBatches(tokens, 2, 1, 0, true); }),
              HasSubstr("evaluation with document_mask needs a source that knows"));
}

// For each token of a window, the column at which its document begins: the last start at or before
// the token, if that is in the window.
std::vector<int32_t> FirstKeys(const std::vector<bool>& starts, int64_t window, int64_t n,
                               int64_t block_size) {
  std::vector<int32_t> keys;
  for (int64_t col = 0; col < block_size; ++col) {
    int64_t first = std::min(col, std::max<int64_t>(n - 1, 0));
    while (first > 0 && !starts[window + first]) --first;
    keys.push_back(static_cast<int32_t>(first));
  }
  return keys;
}

TEST(DocumentsTest, BatchesHaveThoseOfIndexedShardsAndSlices) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::shared_ptr<const TokenSource>> parts;
    std::vector<bool> starts;
    const int64_t shards = 1 + static_cast<int64_t>(random() % 3);
    const uint32_t rarity = 1 + random() % 12;
    for (int64_t shard = 0; shard < shards; ++shard) {
      const auto size = static_cast<int64_t>(1 + random() % 40);
      std::vector<uint64_t> index;
      for (int64_t at = 0; at < size; ++at) {
        // A shard may begin within a document, but has at least one of its own.
        const bool is_start = random() % rarity == 0 || (at + 1 == size && index.empty());
        if (is_start) index.push_back(at);
        starts.push_back(is_start);
      }
      parts.push_back(std::make_shared<IndexedTokens>(RandomIds(&random, size, 50), index));
    }
    const auto whole = std::make_shared<TokenConcatenation>(parts);
    const auto begin = static_cast<int64_t>(random() % whole->size());
    const TokenSlice slice(whole, begin, whole->size());
    ASSERT_TRUE(slice.has_documents());
    starts.erase(starts.begin(), starts.begin() + begin);
    const std::vector<int32_t> marks = Starts(slice, 0, slice.size());
    ASSERT_TRUE(std::equal(marks.begin(), marks.end(), starts.begin(), starts.end()));

    const auto block_size = static_cast<int64_t>(1 + random() % 20);
    std::vector<int64_t> windows;
    for (int row = 0; row < 3; ++row) windows.push_back(random() % (slice.size() + 3));
    Batch batch, without;
    ReadBatch(slice, windows, block_size, &batch, /*document_mask=*/true);
    ReadBatch(slice, windows, block_size, &without);
    EXPECT_EQ(batch.inputs, without.inputs);
    EXPECT_EQ(batch.targets, without.targets);
    EXPECT_TRUE(without.first_key.empty());
    std::vector<int32_t> expected;
    for (const int64_t window : windows) {
      const int64_t n = std::clamp<int64_t>(slice.size() - 1 - window, 0, block_size);
      const std::vector<int32_t> row = FirstKeys(starts, n == 0 ? 0 : window, n, block_size);
      expected.insert(expected.end(), row.begin(), row.end());
    }
    ASSERT_EQ(batch.first_key, expected) << "round " << round;
  }
}

TEST(DocumentsTest, LoadersAndEvaluationsReadThem) {
  const auto tokens =
      std::make_shared<MemoryTokens>(std::vector<int32_t>{9, 1, 2, 9, 3, 4, 5, 6, 9, 7, 8, 9, 1});
  const auto source = std::make_shared<SeparatedTokens>(tokens, 9, Separator::kFirst);
  Loader loader(source, Sampler(Order::kSequential, 1, 13, 4),
                {.batch_size = 3, .document_mask = true});
  const std::vector<int32_t> first = loader.Next().first_key;
  EXPECT_THAT(first, ElementsAre(0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 3));
  const EvalBatches evaluation(source, 4, 3, 0, /*document_mask=*/true);
  Batch batch;
  evaluation.Read(0, &batch);
  EXPECT_EQ(batch.first_key, first);
  EvalBatches(source, 4, 3).Read(0, &batch);
  EXPECT_TRUE(batch.first_key.empty());
}

}  // namespace
}  // namespace lockstep::data
