#include "dist/data_parallel/slow_ranks.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <thread>

#include "dist/groups/agreement.h"
#include "tests/dist/in_process.h"
#include "tests/dist/toy_training.h"

namespace lockstep::dist {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kStepMs = 40;

// What SlowRanks said of a run.
struct Story {
  std::vector<std::pair<int64_t, LateRank>> begin;  // with the step
  std::vector<std::pair<int64_t, int>> end;
  std::vector<SlowRanks::Verdict> verdicts;

  std::vector<int> Begun() const {
    std::vector<int> ranks;
    for (const auto& [step, late] : begin) ranks.push_back(late.rank);
    return ranks;
  }
};

// A run of steps of 40 ms, in each of which a rank computes for 30 ms, 2 of them waiting for data,
// and receives for 5. `change`(step, times) says what is different.
using Change = std::function<void(int64_t step, std::vector<RankTimes>& times)>;
Story Play(std::vector<int64_t> work, int64_t steps, const Change& change) {
  Story story;
  const size_t ranks = work.size();
  SlowRanks slow(std::move(work));
  for (int64_t step = 1; step <= steps; ++step) {
    std::vector<RankTimes> times(ranks, {.arrival = 30'000, .data = 2'000, .receiving = 5'000});
    change(step, times);
    const auto verdict = slow.Add(1, kStepMs, times);
    if (!verdict) continue;
    for (const LateRank& late : verdict->begin) story.begin.emplace_back(step, late);
    for (const int rank : verdict->end) story.end.emplace_back(step, rank);
    story.verdicts.push_back(*verdict);
  }
  return story;
}
const std::vector<int64_t> kTwo = {0, 0}, kFour = {0, 0, 0, 0};

TEST(SlowRanks, EachCauseIsNamedAfterAHundredSteps) {
  const auto named = [](const Change& change) {
    const Story story = Play(kTwo, 500, change);
    EXPECT_THAT(story.Begun(), ElementsAre(1));
    EXPECT_THAT(story.end, IsEmpty());
    if (story.begin.empty()) return std::string();
    const auto& [step, late] = story.begin[0];
    EXPECT_EQ(step, 2 * SlowRanks::kWindow);
    EXPECT_NEAR(late.ms, 6, 1e-9);
    EXPECT_NEAR(late.share, 0.15, 1e-9);
    return late.cause;
  };
  EXPECT_EQ(named([](int64_t, auto& t) { t[1].arrival += 6'000; }), "computing");
  EXPECT_EQ(named([](int64_t, auto& t) {
              t[1].arrival += 6'000;
              t[1].data += 6'000;
            }),
            "data");
  // A disk that is slow now and then.
  EXPECT_EQ(named([](int64_t step, auto& t) {
              if (step % 10 != 0) return;
              t[1].arrival += 60'000;
              t[1].data += 60'000;
            }),
            "data");
  EXPECT_EQ(named([](int64_t step, auto& t) {
              if (step % 50 != 25) return;
              t[1].arrival += 300'000;
              t[1].checkpoint += 300'000;
            }),
            "checkpoint");
  // The others wait for its messages.
  EXPECT_EQ(named([](int64_t, auto& t) { t[0].receiving += 6'000; }), "sending");
}

TEST(SlowRanks, LessThanATenthOrAlikeOrOnceIsNotNamed) {
  const auto nobody = [](const std::vector<int64_t>& work, const Change& change) {
    const Story story = Play(work, 1000, change);
    EXPECT_THAT(story.begin, IsEmpty());
    EXPECT_THAT(story.end, IsEmpty());
    return story;
  };
  nobody(kTwo, [](int64_t, auto&) {});
  const Story hardly = nobody(kTwo, [](int64_t, auto& t) { t[1].arrival += 3'900; });
  EXPECT_EQ(hardly.verdicts.back().latest.rank, 1);
  EXPECT_NEAR(hardly.verdicts.back().latest.ms, 3.9, 1e-9);
  EXPECT_THAT(hardly.verdicts.back().named, IsEmpty());
  // All slow alike.
  nobody(kFour, [](int64_t, auto& t) {
    for (RankTimes& r : t) r.arrival += 50'000;
  });
  // One stall of half a minute.
  nobody(kTwo, [](int64_t step, auto& t) {
    if (step == 333) t[0].arrival += 30'000'000;
  });
  // Stages of a pipeline, and ranks with more micro-batches, have more or less to do.
  nobody({0, 0, 1, 1, 2}, [](int64_t, auto& t) {
    for (size_t r = 2; r < 5; ++r) t[r].arrival *= static_cast<int64_t>(r);
    t[3] = t[2];
  });
  // The one whose link is slow in this direction is the one that receives, and nobody else sends
  // slowly.
  nobody(kFour, [](int64_t, auto& t) { t[2].receiving += 20'000; });
}

TEST(SlowRanks, OfSeveralRanksAllThatAreLateAreNamed) {
  // Ranks 2 and 3 are on a slow machine; so is rank 7, in another stage.
  const Story story = Play({0, 0, 0, 0, 0, 1, 1, 1}, 200, [](int64_t, auto& t) {
    for (const size_t r : {2, 3, 7}) t[r].arrival += 10'000;
    t[3].arrival += 2'000;
  });
  EXPECT_THAT(story.Begun(), ElementsAre(2, 3, 7));
  EXPECT_EQ(story.verdicts.back().latest.rank, 3);
  EXPECT_EQ(story.verdicts.back().named.size(), 3u);
}

TEST(SlowRanks, ItsEndIsToldAndTheSameRankIsNamedSeldom) {
  // It comes and goes every 200 steps.
  const Story story = Play(kTwo, 4000, [](int64_t step, auto& t) {
    if ((step - 1) / 200 % 2 == 1) t[0].arrival += 20'000;
  });
  ASSERT_FALSE(story.begin.empty());
  EXPECT_EQ(story.begin[0].first, 300);
  ASSERT_FALSE(story.end.empty());
  EXPECT_EQ(story.end[0], std::pair(int64_t{500}, 0));
  EXPECT_LE(std::ssize(story.begin), 4000 / SlowRanks::kQuiet);
  EXPECT_EQ(story.begin.size(), story.end.size());
}

// Short steps on a busy machine: half of the time others have the core, for slices of 4 ms.
TEST(SlowRanks, NobodyIsNamedInAMillionNoisySteps) {
  SlowRanks slow(kFour);
  std::mt19937_64 random(7);
  std::exponential_distribution<double> slices(1.0 / 4000);
  std::bernoulli_distribution is_taken(0.5);
  int64_t windows = 0;
  for (int64_t step = 0; step < 1'000'000; ++step) {
    std::vector<RankTimes> times(4);
    int64_t slowest = 0;
    for (RankTimes& t : times) {
      t.arrival = 5'000 + (is_taken(random) ? static_cast<int64_t>(slices(random)) : 0);
      t.data = t.arrival / 50;
      t.receiving = 500 + static_cast<int64_t>(slices(random)) / 10;
      slowest = std::max(slowest, t.arrival + t.receiving);
    }
    const auto verdict = slow.Add(1, 1e-3 * static_cast<double>(slowest), times);
    if (!verdict) continue;
    ++windows;
    ASSERT_THAT(verdict->named, IsEmpty()) << step;
  }
  EXPECT_GT(windows, 2500);
}

// Two real ranks, of which one sleeps.
std::vector<LateRank> NamedWhere(const std::function<void(ToyModel&)>& prepare_rank1,
                                 std::chrono::milliseconds data_of_rank1) {
  using Clock = std::chrono::steady_clock;
  const auto us = [](Clock::duration d) {
    return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
  };
  std::vector<LateRank> named;
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    if (group.rank() == 1) prepare_rank1(model);
    DataParallel parallel(&group, model, {.micro_batches = 2});
    SlowRanks slow(kTwo);
    double arrivals_ms = 0;
    constexpr int64_t kSteps = 200;
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto begin = Clock::now();
      if (group.rank() == 1) std::this_thread::sleep_for(data_of_rank1);
      const ToyBatch batch = MakeToyBatch(2 * step + group.rank());
      const int64_t data = us(Clock::now() - begin);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // what all compute
      ToyBackward(model, batch, 8);
      model.ZeroGrad();
      const CommunicationTimes& times = parallel.times();
      arrivals_ms += times.arrival_ms;
      const int64_t mine[] = {std::llround(1e3 * times.arrival_ms), data,
                              std::llround(1e3 * times.receiving_ms)};
      std::vector<RankTimes> all;
      for (const auto& r : GatherValues(*parallel.control(), mine)) {
        all.push_back({.arrival = r[0], .data = r[1], .receiving = r[2]});
      }
      const double ms = 1e-3 * static_cast<double>(us(Clock::now() - begin));
      const auto verdict = slow.Add(1, ms, all);
      if (!verdict || group.rank() != 0) continue;
      named.insert(named.end(), verdict->begin.begin(), verdict->begin.end());
    }
    // Rank 0 is held up by 15 ms in each step, which is not its own time.
    if (group.rank() == 0) {
      EXPECT_LT(arrivals_ms / kSteps, 20);
    }
  });
  return named;
}

TEST(SlowRanks, ARankThatSleepsIsNamedByTheOther) {
  using std::chrono::milliseconds;
  for (const std::string cause : {"data", "computing"}) {
    const auto sleep = [](Module&) { std::this_thread::sleep_for(milliseconds(15)); };
    const std::vector<LateRank> named = NamedWhere(
        [&](ToyModel& model) {
          if (cause != "data") model.AddPreBackwardHook(sleep);
        },
        milliseconds(cause == "data" ? 15 : 0));
    ASSERT_EQ(named.size(), 1u) << cause;
    EXPECT_EQ(named[0].rank, 1);
    EXPECT_EQ(named[0].cause, cause);
    EXPECT_NEAR(named[0].ms, 15, 10);
    EXPECT_GT(named[0].share, 0.3);
  }
}

}  // namespace
}  // namespace lockstep::dist
