// Which processes form the next world of an elastic run.
#include "dist/launch/members.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace lockstep::dist {
namespace {

class MembersTest : public testing::Test {
 protected:
  void Start(Members& m, int count) {
    for (int i = 0; i < count; ++i)
      m.Start(i, /*node=*/i / 2, i / 2 == 0 ? "10.0.0.1" : "10.0.0.2");
  }
  // A world of processes that have come to `step`.
  std::map<int, MemberPlace> Form(Members& m, std::initializer_list<int> members, int64_t step) {
    for (const int member : members) {
      m.BeReady(member, {.epoch = m.epoch(), .step = step, .port = 1000 + member});
    }
    return m.Form();
  }
};

TEST_F(MembersTest, TheFirstWorldWaitsForAll) {
  Members m(/*least=*/1, /*first=*/4);
  Start(m, 4);
  EXPECT_TRUE(Form(m, {3, 1, 0}, -1).empty());
  const auto places = Form(m, {2}, -1);
  ASSERT_EQ(places.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const MemberPlace& p = places.at(i);
    EXPECT_EQ(p.rank, i);
    EXPECT_EQ(p.size, 4);
    EXPECT_EQ(p.local_rank, i % 2);
    EXPECT_EQ(p.local_size, 2);
    EXPECT_EQ(p.epoch, 1);
    EXPECT_EQ(p.address, "10.0.0.1");
    EXPECT_EQ(p.port, 1000);
  }
}

TEST_F(MembersTest, OrNotIfSomeDoNotCome) {
  Members m(2, 4);
  Start(m, 2);
  EXPECT_TRUE(Form(m, {0}, -1).empty());
  EXPECT_TRUE(m.Form(/*patient=*/false).empty());
  EXPECT_TRUE(Form(m, {1}, -1).empty());
  EXPECT_EQ(m.Form(/*patient=*/false).size(), 2u);
}

TEST_F(MembersTest, ThoseThatLiveGoOnWithoutTheDead) {
  Members m(1, 4);
  Start(m, 4);
  Form(m, {0, 1, 2, 3}, -1);
  m.End(0, "was killed");
  EXPECT_TRUE(Form(m, {1, 3}, 7).empty()) << "2 lives, and is not ready";
  const auto places = Form(m, {2}, 8);
  ASSERT_EQ(places.size(), 3u);
  // One that has come furthest is rank 0; the others keep their order.
  EXPECT_EQ(places.at(2).rank, 0);
  EXPECT_EQ(places.at(1).rank, 1);
  EXPECT_EQ(places.at(3).rank, 2);
  EXPECT_EQ(places.at(1).address, "10.0.0.2");
  EXPECT_EQ(places.at(1).port, 1002);
  EXPECT_EQ(places.at(1).news, "rank 0 was killed");
  EXPECT_EQ(places.at(2).local_rank, 0);
  EXPECT_EQ(places.at(3).local_rank, 1);
  EXPECT_EQ(places.at(1).local_rank, 0);
}

TEST_F(MembersTest, OneThatJoinsHasTheOthersSummonedOnce) {
  Members m(1, 2);
  Start(m, 2);
  EXPECT_TRUE(m.Summon().empty());
  Form(m, {0, 1}, -1);
  m.End(1, "was killed");
  EXPECT_EQ(Form(m, {0}, 5).size(), 1u);
  m.Start(1, 0, "10.0.0.1");
  EXPECT_TRUE(m.Summon().empty());
  m.BeReady(1, {});
  EXPECT_TRUE(m.Form().empty());
  EXPECT_EQ(m.Summon(), std::vector<int>{0});
  EXPECT_TRUE(m.Summon().empty());
  const auto places = Form(m, {0}, 9);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places.at(0).rank, 0);
  EXPECT_EQ(places.at(1).news, "1 process joins");
}

TEST_F(MembersTest, OneThatOthersLostIsKilledUnlessItIsReady) {
  Members m(1, 3);
  Start(m, 3);
  Form(m, {0, 1, 2}, -1);
  m.BeReady(0, {.epoch = 1, .step = 3, .lost = {1}});
  m.BeReady(2, {.epoch = 1, .step = 3, .lost = {1}});
  EXPECT_EQ(m.Condemn(), std::vector<int>{1});
  EXPECT_TRUE(m.Condemn().empty());
  EXPECT_TRUE(m.Form().empty());
  m.End(1, "was killed");
  EXPECT_EQ(m.Form().size(), 2u);
  // Of an earlier world: these ranks are others now.
  m.BeReady(0, {.epoch = 1, .step = 3, .lost = {1}});
  EXPECT_TRUE(m.Condemn().empty());
  m.BeReady(2, {.epoch = 2, .step = 3});
  m.BeReady(0, {.epoch = 2, .step = 3, .lost = {1}});
  EXPECT_TRUE(m.Condemn().empty()) << "it is ready";
}

TEST_F(MembersTest, TooFewWait) {
  Members m(2, 2);
  Start(m, 2);
  Form(m, {0, 1}, -1);
  m.End(0, "was killed");
  EXPECT_TRUE(Form(m, {1}, 4).empty());
  m.Start(0, 0, "10.0.0.1");
  EXPECT_TRUE(m.Form().empty());
  m.BeReady(0, {});
  const auto places = m.Form();
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places.at(1).rank, 0) << "it has the run";
}

TEST_F(MembersTest, IfNoneHasTheRunAllBeginTogether) {
  Members m(1, 2);
  Start(m, 2);
  Form(m, {0, 1}, -1);
  m.End(0, "was killed");
  m.End(1, "was killed");
  Start(m, 2);
  EXPECT_TRUE(Form(m, {0}, -1).empty());
  EXPECT_EQ(Form(m, {1}, -1).size(), 2u);
}

// Whatever happens: no process is in a world without knowing, ranks are 0, 1, ..., and a world is
// formed of all that live and are ready.
TEST_F(MembersTest, DrawnLives) {
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    Members m(1 + static_cast<int>(random() % 2), 4);
    Start(m, 4);
    std::map<int, int64_t> step, epoch;
    std::set<int> alive = {0, 1, 2, 3}, ready;
    for (int i = 0; i < 4; ++i) step[i] = -1, epoch[i] = 0;
    for (int event = 0; event < 300; ++event) {
      const int who = static_cast<int>(random() % 4);
      switch (random() % 3) {
        case 0:
          if (alive.erase(who) == 0) break;
          ready.erase(who);
          m.End(who, "was killed");
          break;
        case 1:
          if (!alive.insert(who).second) break;
          step[who] = -1, epoch[who] = 0;
          m.Start(who, who / 2, "10.0.0.1");
          break;
        default:
          if (!alive.contains(who) || !ready.insert(who).second) break;
          if (epoch[who] > 0) step[who] = m.epoch() * 10 + static_cast<int64_t>(random() % 2);
          m.BeReady(who, {.epoch = epoch[who], .step = step[who], .port = 1});
      }
      const auto places = m.Form();
      if (places.empty()) continue;
      std::set<int> ranks;
      int64_t of_root = -1, most = -1;
      for (const auto& [member, place] : places) {
        ASSERT_TRUE(ready.contains(member));
        ASSERT_EQ(place.size, std::ssize(places));
        ASSERT_TRUE(ranks.insert(place.rank).second);
        ASSERT_LT(place.rank, place.size);
        most = std::max(most, step[member]);
        if (place.rank == 0) of_root = step[member];
        epoch[member] = place.epoch;
      }
      ASSERT_EQ(of_root, most);
      ASSERT_EQ(places.size(), ready.size());
      ready.clear();
    }
  }
}

}  // namespace
}  // namespace lockstep::dist
