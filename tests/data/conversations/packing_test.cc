// Which items share a row, and which rows validate.
#include "data/conversations/packing.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "data/conversations/encode_rows.h"

namespace lockstep::data {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(PackRows, KeepsEveryItemOnceInRowsThatHoldThem) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto capacity = static_cast<int64_t>(1 + random() % 60);
    std::vector<int64_t> lengths(random() % 80);
    for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(random()) % capacity;
    const auto rows = PackRows(lengths, capacity);
    std::vector<int> seen(lengths.size());
    int64_t half_empty = 0, sum = 0;
    for (const auto& row : rows) {
      int64_t used = 0;
      ASSERT_FALSE(row.empty());
      for (const int64_t item : row) {
        used += lengths[static_cast<size_t>(item)];
        ++seen[static_cast<size_t>(item)];
      }
      ASSERT_LE(used, capacity);
      half_empty += 2 * used <= capacity;
      sum += used;
    }
    EXPECT_THAT(seen, Each(1));
    EXPECT_LE(half_empty, 1) << "two such rows would have become one";
    EXPECT_LE(std::ssize(rows), 2 * ((sum + capacity - 1) / capacity));
    EXPECT_EQ(rows, PackRows(lengths, capacity));
  }
  EXPECT_THAT(PackRows(std::vector<int64_t>{3, 7, 4, 6, 5}, 10),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_THROW(PackRows(std::vector<int64_t>{11}, 10), ArgumentError);
  EXPECT_THROW(PackRows(std::vector<int64_t>{0}, 10), ArgumentError);
}

TEST(SplitRows, IsExactAndNeitherAnEndNorAPattern) {
  for (const int64_t rows : {2, 3, 10, 57, 1000}) {
    for (const double fraction : {0.001, 0.1, 0.25, 0.5, 0.999}) {
      const RowSplit split = SplitRows(rows, fraction);
      const double exact = fraction * static_cast<double>(rows);
      if (exact >= 1 && exact <= static_cast<double>(rows - 1)) {
        EXPECT_LE(std::abs(static_cast<double>(split.val.size()) - exact), 0.5);
      }
      std::vector<int64_t> all = split.train;
      EXPECT_TRUE(std::ranges::is_sorted(split.train));
      EXPECT_TRUE(std::ranges::is_sorted(split.val));
      all.insert(all.end(), split.val.begin(), split.val.end());
      std::ranges::sort(all);
      ASSERT_EQ(std::ssize(all), rows);
      for (int64_t i = 0; i < rows; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
      EXPECT_FALSE(split.train.empty());
      EXPECT_FALSE(split.val.empty());
      EXPECT_EQ(SplitRows(rows, fraction).val, split.val);
    }
  }
  // Each tenth of a file has its share: of 10 of 100, a random choice has 5 to 15 almost surely.
  std::vector<int> per_tenth(10);
  for (const int64_t row : SplitRows(1000, 0.1).val) ++per_tenth[static_cast<size_t>(row / 100)];
  EXPECT_THAT(per_tenth, Each(testing::AllOf(testing::Ge(2), testing::Le(20))));
  EXPECT_THAT(SplitRows(4, 0).val, testing::IsEmpty());
  EXPECT_THAT(SplitRows(1, 0.5).val, testing::IsEmpty());
  EXPECT_THAT(SplitRows(0, 0.5).train, testing::IsEmpty());
  EXPECT_THROW(SplitRows(4, 1), ArgumentError);
}

}  // namespace
}  // namespace lockstep::data
