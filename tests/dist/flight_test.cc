// Flight records, and the verdict from them.
#include <gmock/gmock-more-matchers.h>

#include <thread>

#include "core/io/fault.h"
#include "core/io/file.h"
#include "dist/flight/flight_recorder.h"
#include "dist/flight/flight_verdict.h"
#include "dist/groups/host_group.h"
#include "tests/dist/ranks.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Tensor Ones(int64_t n) { return Tensor::Full({n}, 1, DType::kF32); }

std::string Folder(const std::string& name) {
  const std::string parent = JoinPath(testing::TempDir(), "flight_" + name);
  RemoveTree(parent);
  MakeDirectories(parent);
  return JoinPath(parent, "flight");
}

// Runs ranks as threads, each with a recorder; the error that ends a rank is recorded as in
// train_gpt.
std::map<int, FlightRecord> Fly(const std::string& name, int ranks,
                                const std::function<void(ProcessGroup&)>& body,
                                GroupOptions options = {}) {
  const std::string folder = Folder(name);
  auto ends = test::MakeEnds(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r, options]() mutable {
      options.recorder = std::make_shared<FlightRecorder>(folder, r, ranks);
      options.recorder->SetMeeting("one");
      try {
        test::End end = std::move(ends[static_cast<size_t>(r)]);
        const auto group = MakeHostGroup(std::move(end.transport), std::move(end.control), options);
        body(*group);
      } catch (const std::exception& e) {
        options.recorder->Write(e.what());
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return IsDirectory(folder) ? ReadFlightRecords(folder) : std::map<int, FlightRecord>();
}

TEST(FlightTest, ARunThatEndsWellLeavesNone) {
  EXPECT_THAT(Fly("well", 3, [](ProcessGroup& g) { g.AllReduce(Ones(8))->Wait(); }), IsEmpty());
}

TEST(FlightTest, ACollectiveInsideIfRank0IsNamed) {
  const auto records = Fly("if", 3, [](ProcessGroup& g) {
    const Tensor x = Ones(8);
    for (int i = 0; i < 100; ++i) g.AllReduce(x)->Wait();
    if (g.rank() == 0) g.Broadcast(x, 0)->Wait();
    g.AllReduce(Ones(16), ReduceOp::kSum, "bucket 3 ('h.1.weight')")->Wait();
  });
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records.at(0).groups.at("world").calls.size(), FlightRecorder::kDepth);
  EXPECT_EQ(records.at(0).groups.at("world").calls.back().call.sequence, 101);
  const FlightVerdict v = FindVerdict(records);
  EXPECT_TRUE(v.failed);
  EXPECT_THAT(v.culprits, ElementsAre(0));
  EXPECT_THAT(v.summary, AllOf(HasSubstr("rank 0 at fault, in"), HasSubstr(", group 'world': "),
                               HasSubstr("rank 0 broadcast #101")));
  EXPECT_THAT(
      v.details,
      testing::IsSupersetOf(
          {HasSubstr("rank 0 called broadcast #101 (f32[8], from rank 0), which is running"),
           HasSubstr("rank 2 called all_reduce #101 (f32[16], sum) of bucket 3 "
                     "('h.1.weight'), which is running"),
           HasSubstr("inside `if (rank == 0)`? All ranks must make every call")}));
  EXPECT_THAT(Explain(v, records), AllOf(HasSubstr("records of 3 of 3 ranks"),
                                         HasSubstr("all_reduce #100 (f32[8], sum): done ")));
}

TEST(FlightTest, LessDataOnOneRankIsNamed) {
  const auto records = Fly("data", 3, [](ProcessGroup& g) {
    for (int i = 0; i < (g.rank() == 2 ? 4 : 5); ++i) g.AllReduce(Ones(8))->Wait();
  });
  // Rank 2 has no error.
  EXPECT_EQ(records.size(), 2u);
  const FlightVerdict v = FindVerdict(records);
  EXPECT_THAT(v.culprits, ElementsAre(2));
  EXPECT_THAT(v.summary, HasSubstr("rank 2 ended while others continue: with less data?"));
}

TEST(FlightTest, AnotherConfigurationIsNamed) {
  const auto records = Fly("configuration", 3, [](ProcessGroup& g) {
    g.AllReduce(Ones(g.rank() == 1 ? 7 : 8))->Wait();
  });
  const FlightVerdict v = FindVerdict(records);
  EXPECT_THAT(v.culprits, ElementsAre(1));
  EXPECT_THAT(v.summary, HasSubstr("do all ranks have the same configuration"));
}

// An error that began outside of the groups.
TEST(FlightTest, TheExceptionThatEndedARankIsTheVerdict) {
  const auto records = Fly("exception", 3, [](ProcessGroup& g) {
    g.Barrier()->Wait();
    if (g.rank() == 1) throw InputError("shard 3 is truncated");
    g.AllReduce(Ones(8))->Wait();
  });
  const FlightVerdict v = FindVerdict(records);
  EXPECT_THAT(v.culprits, ElementsAre(1));
  EXPECT_TRUE(v.failed);
  EXPECT_EQ(v.summary, "rank 1 ended by: shard 3 is truncated");
}

// A record is written although the rank itself hangs.
TEST(FlightTest, ARankThatHangsLeavesARecord) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(2);
  const std::string folder = JoinPath(testing::TempDir(), "flight_hang/flight");
  const auto records = Fly(
      "hang", 2,
      [&](ProcessGroup& g) {
        g.Barrier()->Wait();
        if (g.rank() == 1) {
          const std::string mine = JoinPath(folder, FlightFileName(1));
          const auto begin = std::chrono::steady_clock::now();
          while (!PathExists(mine) &&
                 std::chrono::steady_clock::now() - begin < std::chrono::seconds(60))
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          EXPECT_TRUE(PathExists(mine));
          return;
        }
        g.AllReduce(Ones(8))->Wait();
      },
      options);
  const FlightVerdict v = FindVerdict(records);
  EXPECT_THAT(v.culprits, ElementsAre(1));
  EXPECT_THAT(v.summary,
              HasSubstr("rank 1 did not take part within 2 s; rank 1 last called barrier #1"));
  EXPECT_THAT(v.details, testing::Contains(HasSubstr("rank 1 did not call #2 of group 'world'")));
  EXPECT_THAT(v.details, testing::Contains(HasSubstr("a collective inside an `if`")));
}

TEST(FlightTest, AKilledRankHasNoRecordAndIsNamedByTheOthers) {
  Failure gone;
  gone.cause = CollectiveError::Cause::kLostRank;
  gone.rank = 2;
  gone.culprits = {2};
  gone.reason = "rank 2 is gone: its process ended";
  const std::string folder = Folder("killed");
  // From an earlier run, so it does not belong to the others.
  FlightRecorder old(folder, 2, 3);
  old.SetMeeting("old");
  old.Write("something else");
  const Collective call{CollectiveKind::kAllReduce, ReduceOp::kSum, DType::kF32, 0, 8, 1};
  for (const int r : {0, 1}) {
    FlightRecorder recorder(folder, r, 3);
    recorder.SetMeeting("new");
    recorder.Submit("world", call, "bucket 0 ('wte.weight')");
    recorder.Begin("world", call);
    recorder.Fail("world", gone);
  }
  const auto records = ReadFlightRecords(folder);
  EXPECT_EQ(records.size(), 2u);
  const FlightVerdict v = FindVerdict(records);
  EXPECT_THAT(v.culprits, ElementsAre(2));
  EXPECT_EQ(v.summary,
            "rank 2 at fault, in all_reduce #1 (f32[8], sum) of bucket 0 ('wte.weight'), group "
            "'world': rank 2 is gone: its process ended");
  EXPECT_THAT(v.details, testing::Contains(HasSubstr("rank 2 has left no record: killed")));
  EXPECT_THAT(Explain(v, records),
              HasSubstr("all_reduce #1 (f32[8], sum) of bucket 0 ('wte.weight'): "
                        "running"));
}

TEST(FlightTest, RecordsWithoutAFailureSaySo) {
  FlightRecord record{.rank = 0, .ranks = 1};
  const FlightVerdict none = FindVerdict({{0, record}});
  EXPECT_FALSE(none.failed);
  EXPECT_THAT(none.culprits, testing::IsEmpty());
  EXPECT_THAT(Explain(none, {{0, record}}), HasSubstr("verdict: the records show no failure"));
  record.error = "out of memory";
  const FlightVerdict all = FindVerdict({{0, record}});
  EXPECT_TRUE(all.failed);
  EXPECT_EQ(all.summary, "all ranks ended by: out of memory");
}

TEST(FlightTest, RecordsReadBackAsTheyWereWritten) {
  const auto records =
      Fly("round_trip", 2, [](ProcessGroup& g) { g.AllReduce(Ones(8 + g.rank()))->Wait(); });
  for (const auto& [rank, record] : records) {
    EXPECT_EQ(ToJson(ParseFlightRecord(ToJson(record), "x")), ToJson(record));
  }
}

TEST(FlightTest, SaysWhatIsWrongWithAFolder) {
  const std::string folder = Folder("bad");
  EXPECT_THAT(MessageOf<InputError>([&] { ReadFlightRecords(folder); }),
              AllOf(HasSubstr("there are no flight records in"), HasSubstr("out_dir/flight")));
  MakeDirectories(folder);
  for (const char* const text :
       {"", "{", "[]", R"({"flight_record":1,"rank":5,"ranks":3})", R"({"flight_record":99})",
        R"({"flight_record":"one"})", R"({"flight_record":1,"rank":"x","ranks":3})"}) {
    WriteFileAtomically(JoinPath(folder, "rank-0.json"), text);
    EXPECT_THAT(MessageOf<InputError>([&] { ReadFlightRecords(folder); }),
                AllOf(HasSubstr("rank-0.json is not a flight record of this version"),
                      Not(HasSubstr("json.exception"))));
  }
  EXPECT_THAT(MessageOf<InputError>(
                  [] { ParseFlightRecord(R"({"flight_record":1,"rank":1.9,"ranks":3})", "it"); }),
              HasSubstr("it names rank 1.9 of 3 ranks"));
  EXPECT_THAT(MessageOf<InputError>(
                  [] { ParseFlightRecord(R"({"flight_record":1,"rank":1,"ranks":2.5})", "it"); }),
              HasSubstr("its number of ranks is 2.5"));
  FlightRecord record{.rank = 0, .ranks = 2};
  record.groups["g"].failure = Failure{.rank = -5, .culprits = {0}};
  EXPECT_THAT(MessageOf<InputError>([&] { ParseFlightRecord(ToJson(record), "it"); }),
              HasSubstr("it names rank -5 of 2 ranks"));
  record.groups["g"].failure = Failure{.rank = 1, .culprits = {2}};
  EXPECT_THAT(MessageOf<InputError>([&] { ParseFlightRecord(ToJson(record), "it"); }),
              HasSubstr("it names rank 2 of 2 ranks"));
}

TEST(FlightTest, ReadsOlderRecordsWhoseFailuresNameNoGroup) {
  FlightRecord record{.rank = 0, .ranks = 2};
  record.groups["g"].failure = Failure{.rank = 1, .culprits = {1}, .reason = "it left"};
  std::string text = ToJson(record);
  const std::string field = R"("group": "",)";
  const size_t at = text.find(field);
  ASSERT_NE(at, std::string::npos) << text;
  text.erase(at, field.size());
  const auto failure = ParseFlightRecord(text, "it").groups.at("g").failure;
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->group, "");
  EXPECT_EQ(failure->reason, "it left");
}

TEST(FlightTest, ForgetsLeastRecentlyUsedGroups) {
  const std::string folder = Folder("groups");
  FlightRecorder recorder(folder, 0, 1);
  Collective call;
  recorder.Fail("failed", Failure());
  for (int i = 0; i < 1000; ++i) {
    call.sequence = i + 1;
    recorder.Submit(i == 0 ? "failed" : i % 2 == 0 ? "alive" : StrCat("group ", i), call, "");
  }
  recorder.Write("the end");
  const auto groups = ReadFlightRecords(folder).at(0).groups;
  EXPECT_EQ(groups.size(), FlightRecorder::kGroups);
  EXPECT_EQ(groups.at("alive").calls.size(), FlightRecorder::kDepth);
  EXPECT_EQ(groups.at("failed").calls.size(), 1u);
  EXPECT_TRUE(groups.contains("group 999"));
}

TEST(FlightTest, ARecordThatCannotBeWrittenHidesNothing) {
  FlightRecorder nowhere("/proc/nowhere/flight", 0, 1);
  nowhere.Write("why");
  const std::string folder = Folder("file");
  WriteFileAtomically(folder, "a file where the folder should be");
  FlightRecorder(folder, 0, 1).Write("why");
  EXPECT_EQ(ReadFile(folder), "a file where the folder should be");
}

// Neither a group's end nor that of the others, nor that of the process, waits for it.
TEST(FlightTest, ADiskThatHangsHoldsUpNobody) {
  using std::chrono::seconds;
  using Clock = std::chrono::steady_clock;
  const std::string folder = Folder("hung");
  FaultInjector hung({.action = FaultPlan::Action::kSlow,
                      .at = 1,
                      .repeat = true,
                      .delay = FlightRecorder::kPatience + seconds(10)});
  const ScopedFaultInjector scope(&hung);
  GroupOptions options;
  options.recorder = std::make_shared<FlightRecorder>(folder, 0, 2);
  Clock::time_point thrown;
  const auto errors = test::ErrorsOf(
      2,
      [&](ProcessGroup& g) {
        const auto other = g.Duplicate("other");
        other->Barrier()->Wait();
        if (g.rank() == 1) {
          thrown = Clock::now();
          throw InputError("enough");
        }
        other->AllReduce(Ones(8))->Wait();
      },
      options);
  EXPECT_LT(Clock::now() - thrown, seconds(8));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 gave up"));
  // The thread that writes may begin late.
  while (hung.operations() == 0 && Clock::now() - thrown < seconds(20)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_GT(hung.operations(), 0);
  // As train_gpt does at its end.
  testing::internal::CaptureStderr();
  options.recorder->Write(errors[0]);
  options.recorder.reset();
  EXPECT_LT(Clock::now() - thrown, FlightRecorder::kPatience + seconds(4));
  const std::string warnings = testing::internal::GetCapturedStderr();
  EXPECT_EQ(warnings.find("does the disk hang?"), warnings.rfind("does the disk hang?"));
  EXPECT_THAT(warnings, HasSubstr("does the disk hang?"));
  EXPECT_FALSE(PathExists(JoinPath(folder, FlightFileName(0))));
}

// As in a program without a `catch`, whose main ends without destructors.
TEST(FlightDeathTest, AnExceptionThatNobodyCatchesIsRecorded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string folder = Folder("uncaught");
  const auto run = [&](int rank) {
    FlightRecorder recorder(folder, rank, 2);
    recorder.Submit("world", {.kind = CollectiveKind::kBarrier, .sequence = 1}, "");
    std::thread([] { throw InputError("shard 3 is truncated"); }).join();
  };
  EXPECT_DEATH(run(1), "shard 3 is truncated");
  const FlightRecord record = ReadFlightRecords(folder).at(1);
  EXPECT_EQ(record.error, "shard 3 is truncated");
  EXPECT_EQ(record.groups.at("world").calls.size(), 1u);
}

// The disk hangs as well: the process still ends.
TEST(FlightDeathTest, ADiskThatHangsDoesNotKeepADyingProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string folder = Folder("uncaught_hung");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_DEATH(
      {
        FaultInjector hung({.action = FaultPlan::Action::kSlow,
                            .at = 1,
                            .repeat = true,
                            .delay = std::chrono::seconds(60)});
        const ScopedFaultInjector scope(&hung);
        FlightRecorder recorder(folder, 0, 1);
        std::thread([] { throw InputError("shard 3 is truncated"); }).join();
      },
      "does the disk hang");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_FALSE(PathExists(JoinPath(folder, FlightFileName(0))));
}

}  // namespace
}  // namespace lockstep::dist
