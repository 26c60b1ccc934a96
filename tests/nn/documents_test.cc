#include "nn/documents.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "nn/kv_cache.h"
#include "tests/message_of.h"

namespace lockstep::nn {
namespace {

using test::MessageOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Documents, PositionsBeginAnewInEach) {
  const Documents documents =
      MakeDocuments(std::vector<int32_t>{0, 0, 2, 2, 2, 5, 0, 1, 2, 2, 2, 2}, 2, 6, kCpu);
  EXPECT_TRUE(documents.defined());
  EXPECT_EQ(documents.first_key.shape(), Shape({2, 6}));
  EXPECT_THAT(documents.positions.ToVector<int32_t>(),
              ElementsAre(0, 1, 0, 1, 2, 0, 0, 0, 0, 1, 2, 3));
}

TEST(Documents, FirstKeysAreChecked) {
  const auto message = [](const std::vector<int32_t>& first_key) {
    return MessageOf<ArgumentError>([&] { MakeDocuments(first_key, 2, 2, kCpu); });
  };
  EXPECT_THAT(message({0, 0, 0}), HasSubstr("need 4 first keys, one for each token, got 3"));
  EXPECT_THAT(message({0, 1, 1, 1}), HasSubstr("[1, 0] must have 0, got 1"));
  EXPECT_THAT(message({0, 2, 0, 1}), HasSubstr("[0, 1] must have 1, or 0, got 2"));
  EXPECT_THAT(message({0, -1, 0, 1}), HasSubstr("[0, 1] must have 1, or 0, got -1"));
}

TEST(Documents, ScopesNestAndEnd) {
  const Documents one = MakeDocuments(std::vector<int32_t>{0, 1}, 1, 2, kCpu);
  EXPECT_FALSE(CurrentDocuments().defined());
  {
    const DocumentScope outer(one);
    EXPECT_EQ(CurrentDocuments().first_key.raw_data(), one.first_key.raw_data());
    {
      const DocumentScope inner(Documents{});
      EXPECT_FALSE(CurrentDocuments().defined());
    }
    EXPECT_TRUE(CurrentDocuments().defined());
    KvCache cache(1, 4);
    const KvCacheScope text(cache, {0}, 2, kCpu);
    EXPECT_THAT(MessageOf<ArgumentError>([] { CurrentDocuments(); }),
                HasSubstr("generate text outside of a DocumentScope"));
  }
  EXPECT_FALSE(CurrentDocuments().defined());
}

}  // namespace
}  // namespace lockstep::nn
