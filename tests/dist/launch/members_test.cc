// Which processes form the next world of an elastic run.
#include "dist/launch/members.h"

#include <gmock/gmock-matchers.h>
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

// Of a run whose ranks have different parts of its state, that of rank r in world 1 also at the
// next one.
std::vector<HeldParts> Shards(int rank, int of, int64_t step) {
  return {{.epoch = 1, .step = step, .of = of, .parts = {rank, (rank + of - 1) % of}}};
}

TEST_F(MembersTest, TheNewestStepOfWhichAllPartsAreThere) {
  using Held = std::vector<std::vector<HeldParts>>;
  EXPECT_EQ(NewestWhole({}), std::nullopt);
  const std::vector<HeldParts> a = {{1, 7, 2, {0}}, {1, 8, 2, {0}}}, b = {{1, 7, 2, {1}}};
  EXPECT_EQ(NewestWhole(Held{a, b}), StateVersion(7, 1));
  EXPECT_EQ(NewestWhole(Held{a}), std::nullopt);
  const std::vector<HeldParts> c = {{2, 7, 1, {0}}};  // a later world went on from the same step
  EXPECT_EQ(NewestWhole(Held{a, b, c}), StateVersion(7, 2));
  EXPECT_EQ(NewestWhole(Held{a, b, {{1, 8, 2, {1}}}}), StateVersion(8, 1));
}

TEST_F(MembersTest, WhereTheRunCannotBeDividedAmongAllThoseGoOnThatHaveTheWholeState) {
  Members m(/*least=*/1, /*first=*/4);
  Start(m, 4);
  const auto ready = [&](int member, int64_t epoch, int64_t step, std::vector<HeldParts> held) {
    m.BeReady(member, {.epoch = epoch, .step = step, .sizes = {1, 2, 4}, .held = std::move(held)});
  };
  for (int i = 0; i < 4; ++i) ready(i, 0, -1, {});
  ASSERT_EQ(m.Form().size(), 4u);
  m.End(3, "was killed");
  for (int i = 0; i < 3; ++i) ready(i, 1, 5, Shards(i, 4, 5));
  // 0 has the parts 0 and 3, 1 has 1 and 0, 2 has 2 and 1.
  auto places = m.Form();
  ASSERT_EQ(places.size(), 2u);
  EXPECT_TRUE(places.contains(0) && places.contains(2));
  EXPECT_THAT(places.at(0).news, testing::HasSubstr("1 waits"));
  EXPECT_TRUE(m.Summon().empty()) << "three cannot";
  // With the fourth all can.
  m.Start(3, 1, "10.0.0.2");
  EXPECT_TRUE(m.Summon().empty()) << "it is not ready";
  ready(3, 0, -1, {});
  EXPECT_EQ(m.Summon(), (std::vector<int>{0, 2}));
  ready(0, 2, 9, {{2, 9, 2, {0, 1}}});
  EXPECT_TRUE(m.Form().empty());
  ready(2, 2, 9, {{2, 9, 2, {1, 0}}});
  EXPECT_EQ(m.Form().size(), 4u);
}

TEST_F(MembersTest, ACopyThatHasLostARankWaitsForAnother) {
  Members m(1, 4);
  Start(m, 4);
  const auto ready = [&](int member, int64_t step) {
    std::vector<HeldParts> held;
    if (step >= 0) held = {{.epoch = 1, .step = step, .of = 2, .parts = {member % 2}}};
    m.BeReady(member, {.epoch = m.epoch(), .step = step, .sizes = {2, 4}, .held = held});
  };
  for (int i = 0; i < 4; ++i) ready(i, -1);
  ASSERT_EQ(m.Form().size(), 4u);
  EXPECT_EQ(m.least(), 2);
  m.End(0, "was killed");
  for (int i = 1; i < 4; ++i) ready(i, 3);
  const auto places = m.Form();
  ASSERT_EQ(places.size(), 2u);
  EXPECT_TRUE(places.contains(2)) << "only it has part 0";
}

TEST_F(MembersTest, ALostStateIsFoundOutByThoseThatAreLeft) {
  Members m(1, 4);
  Start(m, 4);
  const auto ready = [&](int member, int64_t step) {
    std::vector<HeldParts> held;
    if (step >= 0) held = Shards(member, 4, step);
    m.BeReady(member, {.epoch = m.epoch(), .step = step, .sizes = {1, 2, 4}, .held = held});
  };
  for (int i = 0; i < 4; ++i) ready(i, -1);
  ASSERT_EQ(m.Form().size(), 4u);
  m.End(1, "was killed");
  m.End(2, "was killed");
  for (const int i : {0, 3}) ready(i, 3);
  EXPECT_EQ(m.Form().size(), 2u) << "all that there are: they say what is lost";
}

// Whatever happens: no process is in a world without knowing, ranks are 0, 1, ..., and a world is
// formed of all that live and are ready.
TEST_F(MembersTest, DrawnLives) {
  std::mt19937 random(7);
  for (int run = 0; run < 400; ++run) {
    const std::vector<int> sizes = run % 2 == 0 ? std::vector<int>() : std::vector<int>{1, 2, 4};
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
          m.BeReady(who, {.epoch = epoch[who], .step = step[who], .port = 1, .sizes = sizes});
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
      ASSERT_EQ(places.size(), ready.size() == 3 && !sizes.empty() ? 2 : ready.size());
      for (const auto& [member, place] : places) ready.erase(member);
    }
  }
}

}  // namespace
}  // namespace lockstep::dist
