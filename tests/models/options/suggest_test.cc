#include "models/options/suggest.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

namespace lockstep::models {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Suggest, EditDistance) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("stpes", "steps"), 1);  // a swap
  EXPECT_EQ(EditDistance("lr", "lr"), 0);
}

TEST(Suggest, Nearest) {
  const std::vector<Candidate> keys = {{"train.steps", {"max_iters"}},
                                       {"train.eval_every"},
                                       {"checkpoint.every"},
                                       {"model.n_head"},
                                       {"model.n_embd"}};
  EXPECT_THAT(Nearest("train.step", keys), ElementsAre("train.steps"));
  EXPECT_THAT(Nearest("steps", keys), ElementsAre("train.steps"));
  EXPECT_THAT(Nearest("train.max_iter", keys), ElementsAre("train.steps"));
  EXPECT_THAT(Nearest("n_haed", keys), ElementsAre("model.n_head"));
  EXPECT_THAT(Nearest("train.every", keys), ElementsAre("checkpoint.every"));
  EXPECT_THAT(Nearest("zzzz", keys), IsEmpty());
  EXPECT_THAT(Nearest("", keys), IsEmpty());
  EXPECT_THAT(Nearest(std::string(100000, 'a'), keys), IsEmpty());
}

}  // namespace
}  // namespace lockstep::models
