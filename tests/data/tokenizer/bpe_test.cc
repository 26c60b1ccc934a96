#include "data/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "tests/data/data_test_util.h"

namespace lockstep::data {
namespace {

// The definition: the earliest merge that applies anywhere, at its leftmost place, until none does.
std::vector<int32_t> Naive(const std::vector<BpeMerge>& merges, std::vector<int32_t> ids) {
  for (;;) {
    bool merged = false;
    for (const BpeMerge& merge : merges) {
      for (size_t i = 0; i + 1 < ids.size() && !merged; ++i) {
        if (ids[i] != merge.left || ids[i + 1] != merge.right) continue;
        ids[i] = merge.result;
        ids.erase(ids.begin() + i + 1);
        merged = true;
      }
      if (merged) break;
    }
    if (!merged) return ids;
  }
}

// Merges of random pairs of known tokens, in an order that training need not produce.
std::vector<BpeMerge> RandomMerges(std::mt19937* random, int32_t alphabet, int32_t count) {
  std::vector<BpeMerge> merges;
  std::vector<std::pair<int32_t, int32_t>> seen;
  while (static_cast<int32_t>(merges.size()) < count) {
    const int32_t known = alphabet + static_cast<int32_t>(merges.size());
    const int32_t left = (*random)() % known, right = (*random)() % known;
    if (std::ranges::find(seen, std::pair(left, right)) != seen.end()) continue;
    seen.emplace_back(left, right);
    merges.push_back({left, right, known});
  }
  if ((*random)() % 2) std::shuffle(merges.begin(), merges.end(), *random);
  return merges;
}

TEST(BpeTest, EqualsTheDefinitionOnRandomMerges) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    const int32_t alphabet = 1 + random() % 6;
    const std::vector<BpeMerge> merges = RandomMerges(&random, alphabet, random() % 30);
    const BpeMerger merger(merges);
    // Both sides of the limit between scan and heap.
    const int64_t length = trial % 3 ? random() % 40 : 80 + random() % 60;
    const std::vector<int32_t> ids = RandomIds(&random, length, alphabet);
    std::vector<int32_t> fast = ids;
    merger.Apply(&fast);
    ASSERT_EQ(fast, Naive(merges, ids)) << "trial " << trial;
  }
}

TEST(BpeTest, RunsOfOneTokenMergeFromTheLeft) {
  const BpeMerger merger(std::vector<BpeMerge>{{0, 0, 1}, {1, 1, 2}});
  for (const int64_t n : {7, 96, 97, 1003}) {
    std::vector<int32_t> ids(n, 0);
    merger.Apply(&ids);
    std::vector<int32_t> expected(n / 4, 2);
    if (n % 4 >= 2) expected.push_back(1);
    if (n % 2) expected.push_back(0);
    EXPECT_EQ(ids, expected) << n;
  }
}

// A quadratic algorithm would run into the time limit of the test.
TEST(BpeTest, LongPiecesTakeNearLinearTime) {
  std::vector<BpeMerge> merges;
  for (int32_t i = 0; i < 20; ++i) merges.push_back({i, i, i + 1});
  const BpeMerger merger(merges);
  std::vector<int32_t> ids(int64_t{1} << 21, 0);
  merger.Apply(&ids);
  EXPECT_EQ(ids, std::vector<int32_t>(2, 20));
}

TEST(BpeTest, NoMergesLeaveEverything) {
  const BpeMerger merger({});
  std::vector<int32_t> ids = {3, 1, 2};
  merger.Apply(&ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{3, 1, 2}));
  ids.clear();
  merger.Apply(&ids);
  EXPECT_TRUE(ids.empty());
}

}  // namespace
}  // namespace lockstep::data
