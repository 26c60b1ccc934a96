#include "data/tokenizer/training/pair_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace lockstep::data {
namespace {

// Few ids and many erasures, so that runs of full slots are long and often get holes.
TEST(PairMapTest, EqualsStdMap) {
  std::mt19937 random(1);
  PairMap<int64_t> map;
  std::map<std::pair<int32_t, int32_t>, int64_t> expected;
  for (int64_t step = 0; step < 300000; ++step) {
    const std::pair<int32_t, int32_t> key(random() % 40, INT32_MAX - random() % 40);
    const auto [left, right] = key;
    const bool erases = random() % 100 < (step / 50000 % 2 ? 80 : 30);  // grows, then shrinks
    if (erases && expected.erase(key)) {
      map.Erase(left, right);
      ASSERT_EQ(map.Find(left, right), nullptr);
    } else {
      const auto [value, added] = map.FindOrAdd(left, right);
      ASSERT_EQ(added, !expected.contains(key));
      ASSERT_EQ(*value, expected[key]);
      *value = expected[key] = step;
    }
    if (step % 1000) continue;
    for (int32_t l = 0; l < 40; ++l) {
      for (int32_t r = INT32_MAX - 39; r < INT32_MAX; ++r) {
        const auto it = expected.find({l, r});
        const int64_t* value = map.Find(l, r);
        ASSERT_EQ(value != nullptr, it != expected.end());
        if (value) {
          ASSERT_EQ(*value, it->second);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::data
