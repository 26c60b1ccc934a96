#include "dist/groups/link_load.h"

#include <gtest/gtest.h>

namespace lockstep::dist {
namespace {

using std::chrono::milliseconds;

// Operations of two exchanges of a megabyte each.
class LinkLoadTest : public testing::Test {
 protected:
  // Each exchange takes so long, and so much time passes before each operation.
  void Run(int operations, milliseconds exchange, milliseconds before) {
    for (int i = 0; i < operations; ++i) {
      now_ += before;
      load_.BeginOperation(now_);
      for (int j = 0; j < 2; ++j) {
        load_.Exchanged(1'000'000, now_, now_ + exchange);
        now_ += exchange;
      }
    }
  }
  LinkLoad load_;
  LinkLoad::Time now_ = LinkLoad::Time() + std::chrono::hours(1);
};

// 1 MB in 25 ms are 40 MB/s, in 20 ms 50 MB/s.
TEST_F(LinkLoadTest, OperationsThatFollowEachOtherOnASlowLink) {
  EXPECT_FALSE(load_.IsBehind());
  Run(5, milliseconds(25), milliseconds(1));
  EXPECT_FALSE(load_.IsBehind()) << "before the first there was none, so that four waited";
  Run(1, milliseconds(25), milliseconds(1));
  EXPECT_TRUE(load_.IsBehind());
}

TEST_F(LinkLoadTest, APauseInEveryStepDoesNotMatter) {
  for (int step = 0; step < 3; ++step) {
    Run(1, milliseconds(25), milliseconds(500));
    Run(6, milliseconds(25), milliseconds(1));
  }
  EXPECT_TRUE(load_.IsBehind());
}

TEST_F(LinkLoadTest, AFastLinkIsNotBehind) {
  Run(20, milliseconds(20), milliseconds(1));
  EXPECT_FALSE(load_.IsBehind());
}

// Seven of eight were slow because of something else: a rank that came late.
TEST_F(LinkLoadTest, TheFastestExchangeTellsTheRate) {
  Run(20, milliseconds(25), milliseconds(1));
  load_.Exchanged(1'000'000, now_, now_ + milliseconds(10));
  EXPECT_FALSE(load_.IsBehind());
  Run(4, milliseconds(25), milliseconds(1));
  EXPECT_TRUE(load_.IsBehind());
}

TEST_F(LinkLoadTest, IdleTimeBetweenOperationsMeansThatTheyAreHidden) {
  Run(20, milliseconds(25), milliseconds(26));
  EXPECT_FALSE(load_.IsBehind());
  Run(5, milliseconds(25), milliseconds(24));
  EXPECT_TRUE(load_.IsBehind());
}

TEST_F(LinkLoadTest, SmallMessagesDoNotCount) {
  Run(20, milliseconds(25), milliseconds(1));
  for (int i = 0; i < 20; ++i) {
    now_ += milliseconds(1);
    load_.BeginOperation(now_);
    load_.Exchanged(1000, now_, now_);
  }
  EXPECT_TRUE(load_.IsBehind());
}

}  // namespace
}  // namespace lockstep::dist
