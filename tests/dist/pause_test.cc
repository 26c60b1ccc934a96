// Work of a single rank that takes longer than the others' timeout.
#include "dist/groups/pause.h"

#include <gmock/gmock-matchers.h>

#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "dist/control/awake_clock.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/dist/ranks.h"

namespace lockstep::dist {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::MatchesRegex;

constexpr auto kTimeout = 800ms;

class Told {
 public:
  std::function<void(const std::string&)> say() {
    return [this](const std::string& what) {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_.insert(what);
    };
  }
  std::set<std::string> all() const { return all_; }

 private:
  std::mutex mutex_;
  std::set<std::string> all_;
};

// Rank `pauses` works for 3.5 timeouts; then all call an operation of several messages.
void PauseAndSum(ProcessGroup& group, int pauses) {
  if (group.rank() == pauses) {
    const Pause pause(&group, "writing a checkpoint");
    const Pause within(&group, "doing a part of it");
    std::this_thread::sleep_for(3.5 * kTimeout);
  }
  const Tensor x = Tensor::Full({6'000'000}, 1, DType::kF32, group.device());
  group.AllReduce(x)->Synchronize();
  EXPECT_THAT(x.Slice(0, 5'999'998, 6'000'000).ToVector<float>(),
              Each(static_cast<float>(group.size())));
}

// A thread whose disk hangs may never end its pause.
TEST(Pauses, DoNotKeepTheControlPlane) {
  auto groups = MakeInProcessGroups(1, {});
  const std::weak_ptr<ControlPlane> control = groups[0]->control();
  const Pause pause(groups[0].get(), "writing a checkpoint");
  groups.clear();
  EXPECT_TRUE(control.expired());
}

constexpr char kMessage[] =
    "rank [0-9] has been writing a checkpoint for [0-9]+ s; the other ranks wait for it";

TEST(Pauses, TheOthersTimeoutDoesNotRunMeanwhile) {
  for (const int pauses : {0, 2}) {
    Told told;
    test::RunRanks(3, [&](ProcessGroup& group) { PauseAndSum(group, pauses); },
                   {.timeout = kTimeout, .say = told.say()});
    EXPECT_FALSE(told.all().empty());
    EXPECT_THAT(told.all(), Each(MatchesRegex(kMessage)));
    EXPECT_THAT(told.all(), Each(HasSubstr(StrCat("rank ", pauses, " has been"))));
  }
}

TEST(Pauses, CountsForDuplicates) {
  test::RunRanks(2,
                 [](ProcessGroup& group) {
                   const auto other = group.Duplicate("other");
                   if (group.rank() == 0) {
                     const Pause pause(other.get(), "sampling");
                     std::this_thread::sleep_for(3 * kTimeout);
                   }
                   group.Barrier()->Wait();
                 },
                 {.timeout = kTimeout});
}

// Also where all ranks pause again and again, and each pause ends before it is declared.
TEST(Pauses, OfAGroupCountsForItsCallsOnly) {
  Told told;
  const auto errors = test::ErrorsOf(
      2,
      [](ProcessGroup& group) {
        const auto other = group.Duplicate("other");
        for (int i = 0; i < 50; ++i) {
          const Pause pause(other.get(), "writing a checkpoint", Pause::Scope::kGroup);
          const Pause within(other.get(), "doing a part of it", Pause::Scope::kGroup);
        }
        if (group.rank() == 1) {
          const Pause pause(other.get(), "writing a checkpoint", Pause::Scope::kGroup);
          std::this_thread::sleep_for(3.5 * kTimeout);
        }
        other->Barrier()->Wait();
        const auto lasts = [&] { return group.control()->pause(TopicOf("other")).has_value(); };
        const auto deadline = test::Soon();
        while (lasts() && std::chrono::steady_clock::now() < deadline) {
          std::this_thread::sleep_for(1ms);
        }
        EXPECT_FALSE(lasts());
        if (group.rank() == 1) {
          const Pause pause(other.get(), "writing a checkpoint", Pause::Scope::kGroup);
          std::this_thread::sleep_for(5 * kTimeout);
        }
        group.Barrier()->Wait();
      },
      {.timeout = kTimeout, .say = told.say()});
  EXPECT_THAT(told.all(), Each(MatchesRegex(kMessage)));
  EXPECT_THAT(told.all(), testing::Contains(HasSubstr("rank 1 has been writing a checkpoint for")));
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 did not take part within 0.8 s")));
}

TEST(Pauses, AfterItTheTimeoutRunsAsUsual) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = test::ErrorsOf(2,
                                     [](ProcessGroup& group) {
                                       group.Barrier()->Wait();
                                       if (group.rank() == 0) {
                                         { const Pause pause(&group, "printing"); }
                                         {
                                           const Pause pause(&group, "sampling");
                                           std::this_thread::sleep_for(2 * kTimeout);
                                         }
                                         std::this_thread::sleep_for(4 * kTimeout);
                                       }
                                       group.Barrier()->Wait();
                                     },
                                     {.timeout = kTimeout});
  EXPECT_THAT(errors, Each(HasSubstr("rank 0 did not take part within 0.8 s")));
  EXPECT_THAT(errors, Each(testing::Not(HasSubstr("has been sampling"))));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST(Pauses, ARankThatGivesUpWithinOneIsNamedAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = test::ErrorsOf(2,
                                     [](ProcessGroup& group) {
                                       if (group.rank() == 0) {
                                         const Pause pause(&group, "writing a checkpoint");
                                         std::this_thread::sleep_for(500ms);
                                         throw InputError("the disk is full");
                                       }
                                       group.Barrier()->Wait();
                                     },
                                     {.timeout = 60s});
  EXPECT_THAT(errors[1], HasSubstr("rank 0 gave up"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

// Rank 1 stays away; rank 2's message has arrived.
TEST(Pauses, ARankThatHasSentIsNotNamedAfterOne) {
  const auto ends = test::MakeEnds(3);
  const auto now = [] { return AwakeClock::now(); };
  char bytes[3] = {};
  const Transport::Outgoing outgoing[] = {{0, &bytes[0], 1}};
  const Transport::Incoming incoming[] = {{1, &bytes[1], 1}, {2, &bytes[2], 1}};
  std::thread sends([&] { EXPECT_NO_THROW(ends[2].transport->Run(outgoing, {}, now() + 60s)); });
  std::thread extends([&] {
    std::this_thread::sleep_for(300ms);
    ends[0].transport->Extend(now() + 1s);
  });
  std::vector<int> late;
  try {
    ends[0].transport->Run({}, incoming, now() + 1s);
  } catch (const TransportError& e) {
    late = e.peers;
  }
  ends[0].transport->Close();
  sends.join();
  extends.join();
  EXPECT_THAT(late, testing::ElementsAre(1));
}

TEST(Pauses, OneRankNeedsNoGroup) { const Pause pause(nullptr, "printing"); }

TEST(Pauses, OnGpus) {
  SKIP_WITHOUT_GPUS(2);
  Told told;
  RunOnGpus(2, [](ProcessGroup& group) { PauseAndSum(group, 0); },
            {.timeout = 2s, .say = told.say()});
  EXPECT_THAT(told.all(), Each(MatchesRegex(kMessage)));
}

}  // namespace
}  // namespace lockstep::dist
