#include "models/checkpoint/checkpoint_saver.h"

#include <gmock/gmock-matchers.h>
#include <malloc.h>

#include <atomic>
#include <barrier>

#include "core/io/fault.h"
#include "models/checkpoint/consolidate.h"
#include "models/checkpoint/hf_model.h"
#include "models/checkpoint/tensor_parts.h"
#include "tests/message_of.h"
#include "tests/models/checkpoint/saved_ranks.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using CheckpointSaverTest = SavedRanksTest;

const Plan kPlans[] = {{1, 1}, {4, 1}, {2, 2}, {2, 1}, {1, 2}};

// With few elements of the whole for each rank, and no bytes that differ from a single rank's.
TEST_F(CheckpointSaverTest, AnyRanksLoadWhatAnyRanksSaved) {
  Save({1, 1}, Path("alone"), /*async=*/false, {10});
  const std::string whole = Folder(Path("alone"), 10);
  int saved = 0;
  for (const Plan& from : kPlans) {
    const std::string out = Path(StrCat("out", saved++));
    Save(from, out, /*async=*/true, {10});
    const std::string folder = Folder(out, 10);
    for (const Plan& to : kPlans) ExpectStep(folder, 10, to);
    EXPECT_EQ(TensorParts::Exist(folder), from.shards > 1) << from;
    if (from.shards == 1) continue;
    Consolidate(folder, out + "/model");
    for (const char* file : {"/model.safetensors", "/config.json"}) {
      EXPECT_EQ(ReadFile(out + "/model" + file), ReadFile(whole + file)) << from;
    }
    // Nothing is written twice.
    const auto bytes = [](const std::string& path, const std::string& kind) {
      int64_t sum = 0;
      for (const std::string& name : ListDirectory(path)) {
        if (!name.starts_with(kind) || !name.ends_with(".safetensors")) continue;
        const auto file = SafetensorsFile::Open(JoinPath(path, name));
        for (const SafetensorsEntry& e : file.entries()) sum += std::ssize(e.bytes);
      }
      return sum;
    };
    for (const char* kind : {"model", "optimizer"}) {
      EXPECT_EQ(bytes(folder, kind), bytes(whole, kind)) << from;
    }
  }
}

// Whichever file operation finds the disk full: a part of a model would keep it full.
TEST_F(CheckpointSaverTest, AModelThatCannotBeWrittenLeavesNothing) {
  const std::string out = Path("out");
  Save({2, 1}, out, /*async=*/false, {10});
  WriteFileAtomically(out + "/config.toml", "");  // as in a run's folder
  int64_t failed = 0;
  for (bool written = false; !written; ++failed) {
    FaultInjector injector(FaultPlan::Parse(StrCat("enospc@", failed + 1, "+")));
    const ScopedFaultInjector scoped(&injector);
    try {
      WriteHfModel({10, Folder(out, 10)}, out);
      written = true;
    } catch (const IoError&) {
      EXPECT_THAT(ListDirectory(out), Each(Not(StartsWith(".tmp")))) << failed;
    }
  }
  EXPECT_GT(failed, 10);
  EXPECT_TRUE(PathExists(out + "/model/model.safetensors"));
}

TEST_F(CheckpointSaverTest, AsynchronousSavesAreTheSynchronousOnesUnderASlowDisk) {
  for (const Plan& plan : {Plan{1, 1}, Plan{4, 1}, Plan{1, 2}}) {
    const std::string out = Path(StrCat(plan.shards, "x", plan.copies));
    Save(plan, out + "sync", /*async=*/false, {11, 12, 13});
    std::atomic<int> early = 0;
    {
      FaultInjector slow({.action = FaultPlan::Action::kSlow,
                          .at = 1,
                          .repeat = true,
                          .delay = std::chrono::milliseconds(30)});
      const ScopedFaultInjector scope(&slow);
      OnRanks(plan, out + "async", /*async=*/true,
              Saves(/*async=*/true, {11, 12, 13},
                    [&](Rank&, CheckpointSaver& saver) { early += !saver.Ended(); }));
    }
    EXPECT_EQ(early, 3 * plan.ranks()) << "Save waited for the disk";
    for (const int64_t step : {11, 12, 13}) {
      const std::string sync = Folder(out + "sync", step), async = Folder(out + "async", step);
      EXPECT_EQ(ListDirectory(sync), ListDirectory(async));
      for (const std::string& name : ListDirectory(sync)) {
        EXPECT_EQ(ReadFile(JoinPath(sync, name)), ReadFile(JoinPath(async, name))) << name;
      }
    }
  }
}

// All ranks learn of it at the next Wait, and training may go on.
TEST_F(CheckpointSaverTest, AFullDiskFailsOnAllRanks) {
  const std::string out = Path("out");
  for (const Plan& plan : {Plan{1, 1}, Plan{4, 1}, Plan{1, 2}}) {
    for (const bool async : {false, true}) {
      int failures = 0;
      bool disturbed = true;
      for (int at = 1; disturbed; at += 3) {
        RemoveTree(out);
        Save(plan, out, async, {10});
        std::atomic<int> failed = 0;
        {
          FaultInjector injector(FaultPlan::Parse(StrCat("enospc@", at, "+")));
          const ScopedFaultInjector scope(&injector);
          OnRanks(plan, out, async, [&](Rank& rank, CheckpointSaver& saver) {
            rank.SetTo(20);
            saver.Save([&](HostSnapshot* to) { return rank.Files(20, to); });
            const std::string message = MessageOf<IoError>([&] { saver.Wait(); });
            if (message == "no error") return;
            ++failed;
            EXPECT_THAT(message, AllOf(HasSubstr("The disk is full"), HasSubstr(out)));
          });
        }
        EXPECT_TRUE(failed == 0 || failed == plan.ranks()) << plan << " at " << at;
        failures += failed > 0;
        disturbed = failed > 0;
        const int64_t newest = CheckpointStore(out).FindNewest()->step;
        EXPECT_TRUE(newest == 20 || (newest == 10 && failed > 0)) << plan << " at " << at;
        for (const std::string& name : ListDirectory(JoinPath(out, "checkpoints"))) {
          EXPECT_TRUE(name.starts_with("step-")) << name;
        }
      }
      EXPECT_GT(failures, 5);
    }
  }
}

TEST_F(CheckpointSaverTest, AnErrorOfAnotherRankKeepsItsClass) {
  const auto errors_of = [&](const std::function<void(int)>& produce) {
    std::vector<std::string> errors(3);
    dist::RunInProcess(3, [&](dist::ProcessGroup& group) {
      CheckpointSaver saver(CheckpointStore(Path("out")), {.group = &group});
      const int rank = group.rank();
      saver.Save([&](HostSnapshot*) { return FilesOf(rank, 10, [=] { produce(rank); }); });
      std::string& error = errors[static_cast<size_t>(rank)];
      try {
        saver.Wait();
      } catch (const InputError& e) {
        error = StrCat("input: ", e.what());
      } catch (const ArgumentError& e) {
        error = StrCat("argument: ", e.what());
      } catch (const OutOfMemoryError& e) {
        error = StrCat("memory: ", e.what());
      } catch (const IoError& e) {
        error = StrCat("io: ", e.what());
      } catch (const Error& e) {
        error = StrCat("error: ", e.what());
      } catch (const std::exception& e) {
        error = StrCat("other: ", e.what());
      }
    });
    return errors;
  };
  const auto on = [](int culprit, const auto& error) {
    return [=](int rank) {
      if (rank == culprit) throw error;
    };
  };
  EXPECT_THAT(errors_of(on(2, InputError("bad"))),
              ElementsAre("input: rank 2: bad", "input: rank 2: bad", "input: bad"));
  EXPECT_THAT(errors_of(on(0, OutOfMemoryError("bad"))),
              ElementsAre("memory: bad", "memory: rank 0: bad", "memory: rank 0: bad"));
  EXPECT_THAT(errors_of(on(1, ArgumentError("bad"))),
              ElementsAre("argument: rank 1: bad", "argument: bad", "argument: rank 1: bad"));
  EXPECT_THAT(errors_of(on(1, std::runtime_error("bad"))),
              ElementsAre("error: rank 1: bad", "other: bad", "error: rank 1: bad"));
  // One that is worse than a full disk counts, on all ranks.
  const std::string both = "error: rank 0: full; rank 1: bad";
  EXPECT_THAT(errors_of([](int rank) {
                if (rank == 0) throw IoError("full");
                if (rank == 1) throw Error("bad");
              }),
              ElementsAre(both, "error: bad", both));
  EXPECT_THAT(errors_of(on(1, IoError("full"))),
              ElementsAre("io: rank 1: full", "io: full", "io: rank 1: full"));
  EXPECT_EQ(CheckpointStore(Path("out")).FindNewest(), std::nullopt);
}

TEST_F(CheckpointSaverTest, TheFolderMustBeShared) {
  const auto out_of = [&](int rank) { return Path(rank == 2 ? "other" : "out"); };
  OnRanks({4, 1}, out_of, /*async=*/true, [&](Rank& rank, CheckpointSaver& saver) {
    saver.Save([&](HostSnapshot* to) { return rank.Files(10, to); });
    EXPECT_THAT(MessageOf<IoError>([&] { saver.Wait(); }),
                AllOf(HasSubstr(rank.share.rank == 2 ? "there is no " : "rank 2: there is no "),
                      HasSubstr(Path("other")), HasSubstr("a file system that they share")));
  });
  EXPECT_EQ(CheckpointStore(Path("out")).FindNewest(), std::nullopt);
}

// For a model that is not sharded, as before there were parts.
TEST_F(CheckpointSaverTest, RanksThatWriteNothingNeedNotShareTheFolder) {
  const auto out_of = [&](int rank) { return Path(rank == 0 ? "out" : "other"); };
  OnRanks({.copies = 2}, out_of, /*async=*/true, [&](Rank& rank, CheckpointSaver& saver) {
    saver.Save([&](HostSnapshot* to) { return rank.Files(10, to); });
    saver.Wait();
  });
  EXPECT_EQ(CheckpointStore(Path("out")).FindNewest()->step, 10);
}

TEST_F(CheckpointSaverTest, NothingGrowsWithTheSaves) {
  // malloc keeps what a thread's own arena has had. With a single one, what is freed is given back.
  if (!test::kSanitized) {
    ASSERT_EQ(mallopt(M_ARENA_MAX, 1), 1);
  }
  for (const Plan& plan : {Plan{1, 1}, Plan{2, 1}}) {
    std::vector<test::ProcessState> states;
    std::vector<int64_t> resident;
    std::barrier meet(plan.ranks());
    OnRanks(plan, Path("out"), /*async=*/true, [&](Rank& rank, CheckpointSaver& saver) {
      for (int64_t step = 10; step < 310; ++step) {
        saver.Wait();
        saver.Save([&](HostSnapshot* to) { return rank.Files(step % 50, to); });
        if (step != 60 && step != 300) continue;
        // Nobody has files open meanwhile, or leaves.
        saver.Wait();
        meet.arrive_and_wait();
        if (rank.share.rank == 0) {
          states.push_back(test::ProcessStateOf());
          resident.push_back(test::ResidentBytes());
        }
        meet.arrive_and_wait();
      }
      saver.Wait();
    });
    // Those that the groups were made with may still end.
    EXPECT_LE(states[1].threads, states[0].threads);
    EXPECT_LE(states[1].descriptors, states[0].descriptors);
    if (!test::kSanitized) {
      EXPECT_LE(resident[1], resident[0] + (1 << 20));  // 5 KiB a save would show
    }
  }
}

}  // namespace
}  // namespace lockstep::models
