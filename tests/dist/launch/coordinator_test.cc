// How the launchers of an elastic run reach each other, and what the first of them orders.
#include "dist/launch/coordinator.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "core/error.h"
#include "dist/launch/launcher_links.h"
#include "dist/launch/member_messages.h"

namespace lockstep::dist {
namespace {

using testing::HasSubstr;
using Report = ProcessReport::Kind;
using Order = ProcessOrder::Kind;

class CoordinatorTest : public testing::Test {
 protected:
  struct Given {
    int node;
    ProcessOrder order;
  };
  std::vector<Given> given_;
  Coordinator coordinator_{/*least=*/2, /*first=*/4, [this](int node, const ProcessOrder& order) {
                             given_.push_back({node, order});
                           }};

  void Start(int node, int slot) {
    coordinator_.Hear(node, {.kind = Report::kStarted, .slot = slot, .text = "10.0.0.1"});
  }
  void BeReady(int node, int slot, const MemberReady& ready) {
    coordinator_.Hear(node, {.kind = Report::kReady, .slot = slot, .ready = ready});
  }
  void Begin() {
    for (const int node : {0, 1}) {
      for (const int slot : {0, 1}) Start(node, slot);
    }
    for (const int node : {0, 1}) {
      for (const int slot : {0, 1}) BeReady(node, slot, {.port = 7});
    }
    coordinator_.Decide();
  }
  // What was given since the last call: "1.0 place" for slot 0 of machine 1.
  std::vector<std::string> Orders() {
    std::vector<std::string> orders;
    for (const auto& [node, order] : std::exchange(given_, {})) {
      std::string what = order.kind == Order::kKill ? "kill" : "over";
      for (const char* line : {"place", "summoned", "broken", "over", "refused"}) {
        if (order.kind == Order::kTell && order.text.find(StrCat("{\"", line)) == 0)
          what = StrCat("tell ", line);
      }
      orders.push_back(StrCat(node, ".", order.slot, " ", what));
    }
    return orders;
  }
};

TEST_F(CoordinatorTest, AWorldOfSeveralMachines) {
  Begin();
  EXPECT_THAT(Orders(), testing::ElementsAre("0.0 tell place", "0.1 tell place", "1.0 tell place",
                                             "1.1 tell place"));
}

TEST_F(CoordinatorTest, AMachineThatGoesTakesItsProcessesWithIt) {
  Begin();
  Orders();
  coordinator_.Lose(1, "went with machine 1");
  EXPECT_THAT(Orders(), testing::Contains("0.0 tell broken"));
  BeReady(0, 0, {.epoch = 1, .step = 3, .port = 7});
  BeReady(0, 1, {.epoch = 1, .step = 3, .port = 7});
  coordinator_.Decide();
  EXPECT_THAT(Orders(), testing::ElementsAre("0.0 tell place", "0.1 tell place"));
  EXPECT_EQ(coordinator_.living(), 2);
}

TEST_F(CoordinatorTest, WhoDoesNotAnswerIsKilledOnItsMachine) {
  Begin();
  Orders();
  BeReady(0, 0, {.epoch = 1, .step = 3, .port = 7, .lost = {3}});
  coordinator_.Decide();
  EXPECT_THAT(Orders(), testing::ElementsAre("1.1 kill"));
}

TEST_F(CoordinatorTest, AFinishedRunTakesNobodyIn) {
  Begin();
  Orders();
  coordinator_.Hear(1, {.kind = Report::kOver, .slot = 0, .text = "ended with exit code 0"});
  coordinator_.Decide();
  EXPECT_THAT(Orders(),
              testing::IsSupersetOf({"0.0 tell over", "1.1 tell over", "0.0 over", "1.0 over"}));
  BeReady(0, 1, {.epoch = 1, .step = 3, .port = 7});
  EXPECT_THAT(Orders(), testing::ElementsAre("0.1 tell over"));
  coordinator_.Decide();
  EXPECT_TRUE(Orders().empty());
  EXPECT_TRUE(coordinator_.over());
  EXPECT_FALSE(coordinator_.refused());
}

TEST_F(CoordinatorTest, ARunThatCannotGoOnSaysWhy) {
  Begin();
  Orders();
  coordinator_.Refuse("too few are left");
  EXPECT_EQ(given_.size(), 4u);
  for (const Given& g : given_) EXPECT_THAT(g.order.text, HasSubstr("too few are left"));
  EXPECT_TRUE(coordinator_.refused());
  // One that was in a world, and says that it is ready only now.
  given_.clear();
  BeReady(0, 0, {.epoch = 1, .step = 3, .port = 7});
  ASSERT_EQ(given_.size(), 1u);
  EXPECT_THAT(given_[0].order.text, HasSubstr("too few are left"));
}

TEST_F(CoordinatorTest, FewerThanTheLeastMeetOnceMoreToSaveAndStop) {
  Begin();
  Orders();
  for (const int slot : {0, 1}) coordinator_.Hear(1, {.kind = Report::kEnded, .slot = slot});
  coordinator_.Hear(0, {.kind = Report::kEnded, .slot = 1});
  Orders();
  BeReady(0, 0, {.epoch = 1, .step = 3, .port = 7});
  coordinator_.Decide();
  EXPECT_TRUE(Orders().empty());
  coordinator_.Hear(1, {.kind = Report::kStopping});
  coordinator_.Decide();
  EXPECT_THAT(Orders(), testing::ElementsAre("0.0 tell place"));
}

TEST_F(CoordinatorTest, ARunThatIsToStopAndCannotSaveEnds) {
  Begin();
  for (const int slot : {0, 1}) coordinator_.Hear(1, {.kind = Report::kEnded, .slot = slot});
  coordinator_.Hear(0, {.kind = Report::kEnded, .slot = 1});
  Orders();
  BeReady(0, 0, {.epoch = 1, .step = 3, .port = 7, .sizes = {2, 4}});
  coordinator_.Decide();
  EXPECT_TRUE(Orders().empty());
  coordinator_.Hear(1, {.kind = Report::kStopping});
  coordinator_.Decide();
  EXPECT_THAT(Orders(), testing::ElementsAre("0.0 tell refused"));
}

TEST_F(CoordinatorTest, TextsOfReportsAndOrders) {
  const ProcessReport report =
      ReportOf(ToText(ProcessReport{.kind = Report::kReady,
                                    .slot = 3,
                                    .ready = {.epoch = 2,
                                              .step = 9,
                                              .port = 8,
                                              .lost = {1, 2},
                                              .sizes = {2, 4},
                                              .held = {{1, 8, 3, {0, 2}}, {2, 9, 1, {}}}}}));
  EXPECT_EQ(report.slot, 3);
  EXPECT_EQ(report.ready.epoch, 2);
  EXPECT_EQ(report.ready.step, 9);
  EXPECT_EQ(report.ready.port, 8);
  EXPECT_EQ(report.ready.lost, (std::vector<int>{1, 2}));
  EXPECT_EQ(report.ready.sizes, (std::vector<int>{2, 4}));
  ASSERT_EQ(report.ready.held.size(), 2u);
  EXPECT_EQ(report.ready.held[0].epoch, 1);
  EXPECT_EQ(report.ready.held[0].step, 8);
  EXPECT_EQ(report.ready.held[0].of, 3);
  EXPECT_EQ(report.ready.held[0].parts, (std::vector<int>{0, 2}));
  const ProcessOrder order =
      OrderOf(ToText(ProcessOrder{.kind = Order::kTell, .slot = 1, .text = "a \"line\"\n"}));
  EXPECT_EQ(order.kind, Order::kTell);
  EXPECT_EQ(order.text, "a \"line\"\n");
  for (const char* text :
       {"", "{}", "7", R"({"kind":9,"slot":0,"text":""})", R"({"kind":0,"slot":-1,"text":""})",
        R"({"kind":1,"slot":0,"text":""})"}) {
    EXPECT_ANY_THROW(ReportOf(text)) << text;
  }
  EXPECT_ANY_THROW(OrderOf(R"({"kind":3,"slot":0,"text":""})"));
}

class LauncherLinksTest : public testing::Test {
 protected:
  static int FreePort() {
    const Socket socket = Listen("127.0.0.1", 0);
    return PortOf(socket);
  }
  // Waits for the next news.
  static std::vector<LauncherLinks::News> Next(LauncherLinks& links) {
    pollfd fd = {links.fd(), POLLIN, 0};
    EXPECT_EQ(poll(&fd, 1, 20'000), 1);
    return links.Take();
  }
};

TEST_F(LauncherLinksTest, TextsInBothDirectionsAndTheEnd) {
  const int port = FreePort();
  auto other =
      std::make_unique<LauncherLinks>("127.0.0.1", port, "secret", 2, std::chrono::seconds(20));
  LauncherLinks first("127.0.0.1", port, "secret");  // later than the one that looks for it
  EXPECT_EQ(Next(*other).at(0).text, "");
  other->Send(0, "one");
  other->Send(0, "two");
  std::vector<LauncherLinks::News> heard;
  while (heard.size() < 2) {
    for (auto& news : Next(first)) heard.push_back(news);
  }
  EXPECT_EQ(heard[0].text, "one");
  EXPECT_EQ(heard[1].text, "two");
  EXPECT_EQ(heard[1].node, 2);
  first.Send(2, "three");
  first.Send(1, "nobody is there");
  EXPECT_EQ(Next(*other).at(0).text, "three");
  other.reset();
  const auto end = Next(first).at(0);
  EXPECT_TRUE(end.gone);
  EXPECT_EQ(end.node, 2);
}

TEST_F(LauncherLinksTest, TwoThatSayTheyAreOneMachine) {
  const int port = FreePort();
  LauncherLinks first("127.0.0.1", port, "secret");
  LauncherLinks one("127.0.0.1", port, "secret", 1, std::chrono::seconds(20));
  LauncherLinks same("127.0.0.1", port, "secret", 1, std::chrono::seconds(20));
  for (LauncherLinks* links : {&one, &same}) EXPECT_FALSE(Next(*links).at(0).gone);
  one.Send(0, "hello");
  EXPECT_EQ(Next(first).at(0).text, "hello");
  same.Send(0, "hello");
  const auto news = Next(same).at(0);
  EXPECT_TRUE(news.gone && news.refused);
  EXPECT_THAT(news.text, HasSubstr("--node_rank of its own"));
  first.Send(1, "to the first one");
  EXPECT_EQ(Next(one).at(0).text, "to the first one");
}

TEST_F(LauncherLinksTest, NobodyWithoutTheSecretIsHeard) {
  const int port = FreePort();
  LauncherLinks first("127.0.0.1", port, "secret");
  LauncherLinks other("127.0.0.1", port, "guess", 1, std::chrono::seconds(1));
  const auto news = Next(other);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_TRUE(news[0].gone);
  other.Send(0, "hello");
  EXPECT_TRUE(first.Take().empty());
}

}  // namespace
}  // namespace lockstep::dist
