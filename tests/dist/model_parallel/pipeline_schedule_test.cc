#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "core/error.h"
#include "dist/pipeline/schedule.h"
#include "dist/pipeline/schedule_check.h"
#include "tests/dist/model_parallel/schedule_csv.h"

namespace lockstep::dist {
namespace {

using enum PipelineKind;

constexpr PipelineKind kKinds[] = {k1F1B, kInterleaved, kZeroBubbleH1, kZeroBubbleV};

std::string Row(const PipelineSchedule& schedule, int rank) {
  std::string text;
  for (const PipelineAction& a : schedule.actions[rank]) {
    text += (text.empty() ? "" : " ") + ToString(a);
  }
  return text;
}

std::string ErrorOf(const std::string& csv, std::vector<int> in_flight = {}) {
  try {
    PipelineSchedule schedule = ScheduleFromCsv(csv);
    schedule.in_flight = std::move(in_flight);
    Check(schedule);
  } catch (const ArgumentError& e) {
    return e.what();
  }
  return "";
}

#define EXPECT_FAILS(text, ...) \
  EXPECT_NE(ErrorOf(__VA_ARGS__).find(text), std::string::npos) << ErrorOf(__VA_ARGS__)

// The orders of the papers and of PyTorch, for 4 ranks and 8 micro-batches.
TEST(PipelineSchedule, OneForwardOneBackward) {
  const PipelineSchedule s = MakeSchedule(k1F1B, 4, 8);
  EXPECT_EQ(Row(s, 0), "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7");
  EXPECT_EQ(Row(s, 1), "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7");
  EXPECT_EQ(Row(s, 2), "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7");
  EXPECT_EQ(Row(s, 3), "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7");
}

TEST(PipelineSchedule, ZeroBubbleH1) {
  const PipelineSchedule s = MakeSchedule(kZeroBubbleH1, 4, 8);
  EXPECT_EQ(Row(s, 0),
            "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 "
            "0W6 0I7 0W7");
  EXPECT_EQ(Row(s, 1),
            "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1F6 1I4 1W3 1F7 1I5 1W4 1I6 1W5 "
            "1I7 1W6 1W7");
  EXPECT_EQ(Row(s, 2),
            "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2F6 2I5 2W3 2F7 2I6 2W4 2I7 "
            "2W5 2W6 2W7");
  EXPECT_EQ(Row(s, 3),
            "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 "
            "3W5 3W6 3W7");
}

TEST(PipelineSchedule, Interleaved) {
  const PipelineSchedule s = MakeSchedule(kInterleaved, 4, 8, 2);
  EXPECT_EQ(Row(s, 0),
            "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 "
            "0B1 0B2 0B3 4B4 4B5 4B6 4B7 0B4 0B5 0B6 0B7");
  EXPECT_EQ(Row(s, 3),
            "3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 7F4 "
            "7B4 7F5 7B5 7F6 7B6 7F7 7B7 3B4 3B5 3B6 3B7");
}

TEST(PipelineSchedule, ZeroBubbleV) {
  const PipelineSchedule s = MakeSchedule(kZeroBubbleV, 4, 8);
  EXPECT_EQ(Row(s, 0),
            "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 "
            "0W0 7F4 7I4 7W4 0I1 0W1 7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 "
            "0I5 0W5 0I6 0W6 0I7 0W7");
  EXPECT_EQ(Row(s, 3),
            "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 "
            "4W2 3F6 3I2 3W2 4F6 4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 "
            "4W5 4W6 4W7 3W5 3W6 3W7");
}

TEST(PipelineSchedule, NamesAndSizes) {
  for (const PipelineKind kind : kKinds) EXPECT_EQ(ParsePipelineKind(Name(kind)), kind);
  EXPECT_THROW(ParsePipelineKind("gpipe"), ArgumentError);
  EXPECT_THROW(MakeSchedule(k1F1B, 0, 4), ArgumentError);
  EXPECT_THROW(MakeSchedule(k1F1B, 2, 0), ArgumentError);
  EXPECT_THROW(MakeSchedule(kInterleaved, 4, 9), ArgumentError);  // 2 rounds
  EXPECT_EQ(MakeSchedule(kZeroBubbleV, 3, 2).rank_of, (std::vector<int>{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(MakeSchedule(kInterleaved, 3, 6, 3).StagesOf(1), (std::vector<int>{1, 4, 7}));
}

// Laws for many sizes: complete, deadlock-free, within the memory of the formula, transfers in
// order; and the text of a schedule says all of it.
TEST(PipelineSchedule, LawsAtManySizes) {
  for (const PipelineKind kind : kKinds) {
    for (int p = 1; p <= 9; ++p) {
      for (int m = 1; m <= 24; ++m) {
        for (int v = 1; v <= (kind == kInterleaved ? 3 : 1); ++v) {
          if (kind == kInterleaved && m % std::max(1, m / p) != 0) continue;
          SCOPED_TRACE(testing::Message() << Name(kind) << " p " << p << " m " << m << " v " << v);
          const PipelineSchedule s = MakeSchedule(kind, p, m, v);
          ASSERT_NO_THROW(Check(s));
          const PipelineSchedule with = AddTransfers(s);
          ASSERT_NO_THROW(Check(with));
          // Only the transfers were added, each of them once.
          size_t transfers = 0, crossings = 0;
          for (int r = 0; r < p; ++r) {
            std::vector<PipelineAction> rest;
            for (const PipelineAction& a : with.actions[r]) {
              a.is_transfer() ? (void)++transfers : rest.push_back(a);
            }
            EXPECT_EQ(rest, s.actions[r]);
          }
          for (int stage = 0; stage + 1 < s.stages(); ++stage) {
            crossings += s.crosses(stage, stage + 1);
          }
          EXPECT_EQ(transfers, 4 * crossings * static_cast<size_t>(m));
          const PipelineSchedule read = ScheduleFromCsv(ToCsv(with));
          EXPECT_EQ(read.actions, with.actions);
          EXPECT_EQ(read.rank_of, with.rank_of);
          EXPECT_EQ(read.micro_batches, m);
        }
      }
    }
  }
}

// The formulas' in-flight numbers are reached, not only kept.
TEST(PipelineSchedule, InFlight) {
  EXPECT_EQ(PeakInFlight(MakeSchedule(k1F1B, 4, 8)), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(PeakInFlight(MakeSchedule(kInterleaved, 4, 8)), (std::vector<int>{11, 9, 7, 5}));
  EXPECT_EQ(PeakInFlight(MakeSchedule(kZeroBubbleH1, 4, 8)), (std::vector<int>{4, 4, 4, 4}));
  EXPECT_EQ(PeakInFlight(MakeSchedule(kZeroBubbleV, 4, 8)), (std::vector<int>{8, 8, 8, 8}));
}

// The papers' bubbles, at F = I = W = 1 of a whole rank and at others.
TEST(PipelineSchedule, Makespans) {
  const auto makespan = [](PipelineKind kind, int p, int m, int v, double f, double i, double w) {
    const double n = ChunksOf(kind, v);
    return Simulate(MakeSchedule(kind, p, m, v), {f / n, i / n, w / n}).makespan;
  };
  EXPECT_DOUBLE_EQ(makespan(k1F1B, 4, 8, 1, 1, 1, 1), 33);
  EXPECT_DOUBLE_EQ(makespan(kInterleaved, 4, 8, 2, 1, 1, 1), 28.5);
  EXPECT_DOUBLE_EQ(makespan(kZeroBubbleH1, 4, 8, 1, 1, 1, 1), 27);
  EXPECT_DOUBLE_EQ(makespan(kZeroBubbleV, 4, 8, 2, 1, 1, 1), 25.5);
  EXPECT_NEAR(makespan(kZeroBubbleH1, 4, 8, 1, 1, 1.2, 0.8), 28.2, 1e-12);
  EXPECT_NEAR(makespan(kZeroBubbleV, 4, 8, 2, 1, 1.2, 0.8), 25.8, 1e-12);
  for (int p = 1; p <= 8; ++p) {
    for (const int rounds : {2, 3, 5}) {
      const int m = rounds * p;
      const double busy = 3.0 * m;
      EXPECT_DOUBLE_EQ(makespan(k1F1B, p, m, 1, 1, 1, 1), busy + 3 * (p - 1));
      EXPECT_DOUBLE_EQ(makespan(kZeroBubbleH1, p, m, 1, 1, 1, 1), busy + (p - 1));
      EXPECT_DOUBLE_EQ(makespan(kZeroBubbleV, p, m, 2, 1, 1, 1), busy + 0.5 * (p - 1));
      for (const int v : {2, 3, 4}) {
        EXPECT_NEAR(makespan(kInterleaved, p, m, v, 1, 1, 1), busy + 3.0 * (p - 1) / v, 1e-9);
      }
    }
  }
}

TEST(PipelineSchedule, SimulatedTransfersAndIdleShares) {
  // Two ranks, one micro-batch: F, send, F B, send, B.
  const SimulatedPipeline s = Simulate(MakeSchedule(k1F1B, 2, 1), {.transfer = 0.25});
  EXPECT_DOUBLE_EQ(s.makespan, 6.5);
  EXPECT_DOUBLE_EQ(s.actions[1][0].begin, 1.25);
  EXPECT_DOUBLE_EQ(s.actions[0][1].end, 6.5);
  EXPECT_DOUBLE_EQ(s.IdleShare(0), 3.5 / 6.5);
  EXPECT_DOUBLE_EQ(s.IdleShare(), 3.5 / 6.5);
  // Stages on the same rank need no transfer: the turn of the V takes no time.
  EXPECT_DOUBLE_EQ(Simulate(MakeSchedule(kZeroBubbleV, 1, 1), {.transfer = 5}).makespan, 6);
}

TEST(PipelineSchedule, RefusesWhatIsIncomplete) {
  EXPECT_EQ(ErrorOf("0F0,0B0\n1F0,1B0\n"), "");
  EXPECT_EQ(ErrorOf("0F0, 0I0,,0W0\r\n1F0,1B0\n"), "");
  EXPECT_FAILS("rank 1 makes 1F1 0 times", "0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n");
  EXPECT_FAILS("rank 0 makes 0B0 1 times, 0I0 0 times and 0W0 1 times", "0F0,0B0,0W0\n");
  EXPECT_FAILS("rank 0 makes 0B0 0 times, 0I0 1 times and 0W0 0 times", "0F0,0I0\n");
  EXPECT_FAILS("order of the micro-batches", "0F0,0F1,0B1,0B0\n");
  EXPECT_FAILS("order of the micro-batches", "0F0,0F1,0I0,0I1,0W1,0W0\n");
  EXPECT_FAILS("'0X0' is not an action", "0F0,0X0\n");
  EXPECT_FAILS("'F0' is not an action", "F0\n");
  EXPECT_FAILS("'0F' is not an action", "0F\n");
  EXPECT_FAILS("stage 0 of the pipeline schedule is on lines 1 and 2", "0F0,0B0\n0F1,0B1\n");
  EXPECT_FAILS("stage 0 of the pipeline schedule is on no rank", "1F0,1B0\n");
  EXPECT_FAILS("needs a stage", "\n");
  EXPECT_FAILS("rank 0 keeps the inputs of 2 forwards", "0F0,0F1,0B0,0B1\n", {1});
}

TEST(PipelineSchedule, RefusesDeadlocksByName) {
  // Rank 0 wants the gradient before it has made the forward.
  EXPECT_FAILS("rank 0, at 0B0 (its action 1), waits for 0F0 of rank 0", "0B0,0F0\n");
  EXPECT_FAILS("rank 1, at 1W0 (its action 2), waits for 1I0 of rank 1", "0F0,0B0\n1F0,1W0,1I0\n");
  // Each of two ranks waits for the other.
  EXPECT_FAILS("rank 0, at 0B0 (its action 2), waits for 1B0 of rank 1, which is at 1F1",
               "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  // The first rank waits for a rank that has ended.
  try {
    Simulate(ScheduleFromCsv("0F0,0B0\n1F0\n"));
    ADD_FAILURE();
  } catch (const ArgumentError& e) {
    EXPECT_NE(std::string(e.what()).find("waits for 1B0 of rank 1, which has ended"),
              std::string::npos)
        << e.what();
  }
  // Right if sends do not wait for their receives, but NCCL's may.
  EXPECT_FAILS(
      "rank 0, at 0SEND_F1 (its action 4), waits for 1RECV_F1 of rank 1, which is at "
      "1SEND_B0",
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
}

TEST(PipelineSchedule, RefusesTransfersThatDoNotMatch) {
  const std::string first = "0F0,0SEND_F0,0F1,0RECV_B0,0B0,0SEND_F1,0RECV_B1,0B1\n";
  EXPECT_EQ(ErrorOf(first + "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"), "");
  // The order of receives swapped: bytes of one micro-batch would be taken for another's.
  EXPECT_FAILS(
      "transfer 1 from rank 0 to rank 1: rank 1 expects 1RECV_F1, but rank 0 sends what is "
      "1RECV_F0",
      first + "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  EXPECT_FAILS("expects nothing more", first + "1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
  // Used before it is received.
  EXPECT_FAILS("rank 1, at 1F0 (its action 1), waits for 1RECV_F0",
               first + "1F0,1RECV_F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_FAILS("on no other rank", "0F0,0SEND_F0,0B0\n");
  // Swapped in every pair of neighbouring receives of real schedules.
  for (const PipelineKind kind : kKinds) {
    PipelineSchedule s = AddTransfers(MakeSchedule(kind, 3, 6));
    int swaps = 0;
    for (auto& actions : s.actions) {
      for (size_t i = 0; i + 1 < actions.size(); ++i) {
        for (size_t j = i + 1; j < actions.size(); ++j) {
          if (!actions[i].is_receive() || actions[i].op != actions[j].op ||
              actions[i].stage != actions[j].stage) {
            continue;
          }
          std::swap(actions[i], actions[j]);
          EXPECT_THROW(Check(s), ArgumentError) << ToString(actions[i]);
          std::swap(actions[i], actions[j]);
          ++swaps;
          break;
        }
      }
    }
    EXPECT_GT(swaps, 10);
    EXPECT_NO_THROW(Check(s));
  }
}

// Any change of a schedule that drops, doubles or moves a computation is found, or leaves a
// schedule that is as good.
TEST(PipelineSchedule, ChecksWhatWasDrawn) {
  std::mt19937 random(7);
  const auto draw = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int refused = 0;
  for (int trial = 0; trial < 400; ++trial) {
    PipelineSchedule s = MakeSchedule(kKinds[draw(4)], 2 + static_cast<int>(draw(3)), 6);
    auto& actions = s.actions[draw(s.actions.size())];
    const size_t at = draw(actions.size());
    const PipelineAction moved = actions[at];
    actions.erase(actions.begin() + static_cast<int64_t>(at));
    const size_t change = draw(3);
    if (change == 1) {
      actions.insert(actions.begin() + static_cast<int64_t>(draw(actions.size())), moved);
    } else if (change == 2) {
      actions.insert(actions.begin(), 2, moved);
    }
    try {
      Check(s);
      EXPECT_EQ(change, 1u);
      EXPECT_NO_THROW(Check(AddTransfers(s)));
    } catch (const ArgumentError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 250);
}

TEST(PipelineSchedule, ThousandRanks) {
  const auto begin = std::chrono::steady_clock::now();
  for (const PipelineKind kind : kKinds) {
    const PipelineSchedule s = AddTransfers(MakeSchedule(kind, 1024, 256));
    Check(s);
    EXPECT_EQ(s.ranks(), 1024);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(seconds, 30) << "a second or two, unless the machine is busy";
}

}  // namespace
}  // namespace lockstep::dist
