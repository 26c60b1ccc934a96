#include "data/corpus.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/io/sha256.h"

namespace lockstep::data {
namespace {

TEST(EmbeddedCorpusTest, HasItsChecksum) {
  EXPECT_EQ(EmbeddedCorpusSha256().size(), 64u);
  EXPECT_EQ(Sha256Of(EmbeddedCorpus()), EmbeddedCorpusSha256());
}

TEST(EmbeddedCorpusTest, IsPlainText) {
  const std::string_view text = EmbeddedCorpus();
  EXPECT_GT(text.size(), 50000u);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_TRUE(
      std::ranges::all_of(text, [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
}

}  // namespace
}  // namespace lockstep::data
