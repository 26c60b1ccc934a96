// Checkpoints that ranks, which are threads here, save together.
#include "models/checkpoint/checkpoint_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "core/io/fault.h"
#include "dist/control/control_plane.h"
#include "dist/groups/agreement.h"
#include "dist/groups/in_process_group.h"
#include "dist/mesh.h"
#include "dist/shard/fully_shard.h"
#include "dist/world.h"
#include "models/checkpoint/consolidate.h"
#include "optim/adamw.h"
#include "tests/message_of.h"
#include "tests/models/temp_folder.h"
#include "tests/models/training.h"
#include "tests/process_state.h"
#include "tests/sanitized.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// How a model is spread over ranks: `copies` times over `shards` ranks each.
struct Plan {
  int shards = 1, copies = 1;
  int ranks() const { return shards * copies; }
};
std::ostream& operator<<(std::ostream& out, const Plan& p) {
  return out << p.copies << " copies over " << p.shards << " ranks each";
}

GptConfig CutGpt() {
  GptConfig config = SmallGpt(0);
  config.n_embd = 76;  // matrices that are cut
  config.bias = true;
  return config;
}

// A model and an optimizer on one rank, whose values are functions of a step.
class Rank {
 public:
  Rank(dist::ProcessGroup* all, const Plan& plan) : model(CutGpt()) {
    if (plan.shards > 1) {
      const dist::Mesh mesh({.shard = plan.shards}, all->rank(), all->size());
      const auto group = [&](const char* axis) {
        return all->Split(mesh.GroupName({axis}), mesh.RanksAlong({axis}));
      };
      shard_ = group("shard");
      replicate_ = group("replicate");
      sharded_ = std::make_unique<dist::FullyShard>(
          dist::ShardGroups(all, shard_.get(), replicate_.get()), model);
      share = {.parts = true, .copy = {all->rank() / plan.shards, plan.copies}};
    }
    model.Materialize(kCpu, 1);
    optimizer = std::make_unique<optim::AdamW>(model.Parameters());
    if (all) share.rank = all->rank();
    share.ranks = plan.ranks();
  }

  // The same values of the same elements on all ranks.
  void SetTo(int64_t step) {
    for (const auto& p : model.Parameters()) Fill(*p, p->part(), step);
    optimizer->ForEachState([&](const std::string& name, const Parameter& p, const Tensor& part) {
      Fill(p, part, name.ends_with("avg") ? step + 1000 : step + 2000);
    });
  }
  static void Fill(const Parameter& p, const Tensor& part, int64_t step) {
    std::vector<float> values(static_cast<size_t>(p.logical_shape().numel()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(step) + static_cast<float>(i) / 65536;
    }
    part.Detach().CopyFrom(p.PartOf(Tensor::FromVector(values, p.logical_shape())));
  }

  CheckpointFiles Files(int64_t step, HostSnapshot* snapshot) const {
    return CollectCheckpoint({.step = step}, model, *optimizer, nullptr, share, snapshot);
  }

  Gpt model;
  std::unique_ptr<optim::Optimizer> optimizer;
  CheckpointShare share;

 private:
  std::shared_ptr<dist::ProcessGroup> shard_, replicate_;
  std::unique_ptr<dist::FullyShard> sharded_;
};

class CheckpointSaverTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return root_.Path(name); }
  static std::string Folder(const std::string& out, int64_t step) {
    return JoinPath(out, StrCat("checkpoints/step-000000", step));
  }

  // Runs body(rank, saver) on all ranks of a plan. `out_of` and `options_of`: each rank's run
  // folder, and the options of its saver.
  using Body = std::function<void(Rank&, CheckpointSaver&)>;
  static void OnRanks(const Plan& plan, const std::function<std::string(int)>& out_of,
                      const std::function<CheckpointSaverOptions(int)>& options_of,
                      const Body& body) {
    const auto run = [&](dist::ProcessGroup* all) {
      const int number = all ? all->rank() : 0;
      OnRank(all, plan, out_of(number), options_of(number), body);
    };
    if (plan.ranks() == 1) return run(nullptr);
    dist::RunInProcess(plan.ranks(), [&](dist::ProcessGroup& all) { run(&all); });
  }
  // The part of it that is a rank's of this group.
  static void OnRank(dist::ProcessGroup* all, const Plan& plan, const std::string& out,
                     CheckpointSaverOptions options, const Body& body) {
    const auto group = all ? all->Duplicate("checkpoints") : nullptr;
    Rank rank(all, plan);
    CheckpointStore store(out, {.keep = 3, .warn = {}});
    options.group = group.get();
    CheckpointSaver saver(store, options);
    body(rank, saver);
  }
  static void OnRanks(const Plan& plan, const std::function<std::string(int)>& out_of, bool async,
                      const Body& body) {
    OnRanks(
        plan, out_of, [async](int) { return CheckpointSaverOptions{.async = async}; }, body);
  }
  static void OnRanks(const Plan& plan, const std::string& out, bool async, const Body& body) {
    OnRanks(
        plan, [&](int) { return out; }, async, body);
  }
  static void Save(const Plan& plan, const std::string& out, bool async,
                   const std::vector<int64_t>& steps) {
    OnRanks(plan, out, async, Saves(async, steps));
  }
  static Body Saves(bool async, const std::vector<int64_t>& steps) {
    return [=](Rank& rank, CheckpointSaver& saver) {
      for (const int64_t step : steps) {
        rank.SetTo(step);
        saver.Wait();
        saver.Save([&](HostSnapshot* to) { return rank.Files(step, to); });
        if (async) rank.SetTo(0);  // as the next update does
      }
      saver.Wait();
    };
  }

  // Whether a rank of any plan that loads the folder holds what the step's ranks held.
  static void ExpectStep(const std::string& folder, int64_t step, const Plan& plan) {
    OnRanks(plan, "nowhere", /*async=*/false, [&](Rank& rank, CheckpointSaver&) {
      LoadWeights(folder, rank.model);
      LoadOptimizerState(folder, *rank.optimizer);
      const auto values = [&] {
        std::vector<std::vector<float>> all;
        for (const auto& p : rank.model.Parameters()) all.push_back(p->part().ToVector<float>());
        for (const auto& [name, t] : rank.optimizer->NamedState()) {
          all.push_back(t.ToVector<float>());
        }
        return all;
      };
      const auto loaded = values();
      rank.SetTo(step);
      EXPECT_TRUE(loaded == values()) << folder << ", " << plan;
    });
  }

  // Runs f in a child, since a process with other threads should not fork.
  static pid_t Fork(const std::function<void()>& f) {
    const pid_t child = fork();
    if (child == 0) {
      f();
      _exit(0);
    }
    return child;
  }
  // Whether it ended by itself, rather than by SIGKILL.
  static bool Lived(pid_t child) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    EXPECT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
    return !killed;
  }
  static bool InChild(const std::function<void()>& f) { return Lived(Fork(f)); }

  // The step of the newest checkpoint, which is whole, and after which the next one is saved as if
  // nothing had happened. Removes the folder.
  static int64_t ExpectToGoOn(const Plan& plan, const std::string& out) {
    InChild([&] {
      const auto newest = CheckpointStore(out).FindNewest();
      ExpectStep(newest->path, newest->step, {1, 1});
      if (HasFailure()) _exit(1);
    });
    const int64_t newest = CheckpointStore(out).FindNewest()->step;
    InChild([&] { Save(plan, out, /*async=*/true, {30}); });
    EXPECT_EQ(CheckpointStore::Verify(JoinPath(out, "latest")).step, 30);
    for (const std::string& name : ListDirectory(JoinPath(out, "checkpoints"))) {
      EXPECT_TRUE(name.starts_with("step-")) << name;  // no leftovers
    }
    RemoveTree(out);
    return newest;
  }

  const test::TempFolder root_{"lockstep_checkpoint_saver_test"};
};

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
      OnRanks(plan, out + "async", /*async=*/true, [&](Rank& rank, CheckpointSaver& saver) {
        for (const int64_t step : {11, 12, 13}) {
          rank.SetTo(step);
          saver.Wait();
          saver.Save([&](HostSnapshot* to) { return rank.Files(step, to); });
          early += !saver.Ended();
          rank.SetTo(0);
        }
        saver.Wait();
      });
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

// All ranks die at an operation of any of them.
TEST_F(CheckpointSaverTest, KillAtEveryOperation) {
  const Plan plan{2, 1};
  for (const std::string fault : {"kill@", "tear@"}) {
    std::set<int64_t> seen;
    bool completed = false;
    int at = 1;
    for (; !completed; ++at) {
      ASSERT_LT(at, 200);
      const std::string out = Path(StrCat(fault, at));
      InChild([&] { Save(plan, out, /*async=*/true, {10}); });
      completed = InChild([&] {
        FaultInjector injector(FaultPlan::Parse(StrCat(fault, at)));
        const ScopedFaultInjector scope(&injector);
        Save(plan, out, /*async=*/true, {20});
      });
      const int64_t newest = ExpectToGoOn(plan, out);
      seen.insert(newest);
      EXPECT_TRUE(newest == 20 || (newest == 10 && !completed)) << fault << at;
    }
    EXPECT_THAT(seen, ElementsAre(10, 20));
    EXPECT_GT(at, 30);
  }
}

// One of two processes dies at an operation of its own. The other commits nothing that lacks the
// dead one's part.
TEST_F(CheckpointSaverTest, KillOfOneRankAtEveryOperation) {
  if (test::kSanitized) GTEST_SKIP() << "some dozens of processes";
  const Plan plan{2, 1};
  for (const int victim : {0, 1}) {
    std::set<int64_t> seen;
    bool completed = false;
    int at = 1;
    for (; !completed; ++at) {
      ASSERT_LT(at, 100);
      const std::string out = Path(StrCat("one", victim, "-", at));
      InChild([&] { Save(plan, out, /*async=*/true, {10}); });
      std::vector<pid_t> children;
      for (int rank = 0; rank < plan.ranks(); ++rank) {
        children.push_back(Fork([&] {
          const dist::Rendezvous rendezvous{.rank = rank,
                                            .world_size = plan.ranks(),
                                            .secret = "of this test",
                                            .store_folder = out + ".ranks"};
          try {
            dist::World world(rendezvous);
            const auto all = world.Group();
            FaultInjector injector(FaultPlan::Parse(StrCat("kill@", at)));
            std::optional<ScopedFaultInjector> scope;
            if (rank == victim) scope.emplace(&injector);
            OnRank(all.get(), plan, out, {.async = true}, Saves(/*async=*/true, {20}));
            all->Barrier()->Synchronize();
          } catch (const Error&) {
            // The other rank has died.
          }
        }));
      }
      EXPECT_TRUE(Lived(children[1 - victim]));
      completed = Lived(children[victim]);
      RemoveTree(out + ".ranks");
      const int64_t newest = ExpectToGoOn(plan, out);
      seen.insert(newest);
      EXPECT_TRUE(newest == 20 || (newest == 10 && !completed))
          << "rank " << victim << " at " << at;
    }
    // Rank 0 commits, rank 1 ends with its part.
    EXPECT_THAT(seen, ElementsAre(10, 20));
    EXPECT_GT(at, 5);
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

// One file with one number, which `produce` makes when it is written.
CheckpointFiles FilesOf(int rank, int64_t step, std::function<void()> produce) {
  CheckpointFiles files{.step = step};
  files.tensors.push_back({StrCat("part-", rank, ".safetensors"),
                           {SafetensorsItem::Of("x", DType::kF32, {1}, [produce] {
                             produce();
                             return Tensor::Full({1}, 1, DType::kF32);
                           })}});
  return files;
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

// It writes from where its tensors are, before it returns from Save.
TEST_F(CheckpointSaverTest, ARankWithoutMemoryForASnapshotWritesWhileTheOthersTrain) {
  for (const Plan& plan : {Plan{1, 1}, Plan{4, 1}, Plan{1, 2}}) {
    const std::string out = Path(StrCat(plan.shards, "x", plan.copies));
    const int poor = plan.shards / 2;
    Save(plan, out + "sync", /*async=*/false, {11, 12, 13});
    std::mutex mutex;
    std::vector<std::string> warnings;
    const auto options_of = [&](int rank) {
      CheckpointSaverOptions options;
      if (rank == poor) options.max_snapshot_bytes = 0;
      options.warn = [&](const std::string& text) {
        const std::lock_guard<std::mutex> lock(mutex);
        warnings.push_back(text);
      };
      return options;
    };
    OnRanks(
        plan, [&](int) { return out; }, options_of,
        [&](Rank& rank, CheckpointSaver& saver) {
          for (const int64_t step : {11, 12, 13}) {
            rank.SetTo(step);
            saver.Wait();
            saver.Save([&](HostSnapshot* to) { return rank.Files(step, to); });
            if (rank.share.rank == poor) {
              EXPECT_TRUE(saver.Ended());
            }
            rank.SetTo(0);
          }
          saver.Wait();
        });
    EXPECT_THAT(warnings,
                ElementsAre(AllOf(HasSubstr(plan.ranks() > 1 ? StrCat("rank ", poor) : "the host"),
                                  HasSubstr("has no memory for a copy"))));
    for (const int64_t step : {11, 12, 13}) {
      const std::string sync = Folder(out + "sync", step), mixed = Folder(out, step);
      for (const std::string& name : ListDirectory(sync)) {
        EXPECT_EQ(ReadFile(JoinPath(sync, name)), ReadFile(JoinPath(mixed, name))) << name;
      }
    }
  }
}

TEST(HostSnapshotTest, WithoutMemoryATensorIsNoCopy) {
  const Tensor x = Tensor::Full({1000}, 1, DType::kF32);
  HostSnapshot small(kCpu, /*max_bytes=*/9 << 20);  // a block
  small.Begin();
  EXPECT_NE(small.Add(x).raw_data(), x.raw_data());
  EXPECT_TRUE(small.complete());
  const Tensor large = Tensor::Full({3 << 20}, 1, DType::kF32);
  EXPECT_EQ(small.Add(large).raw_data(), large.raw_data());
  EXPECT_FALSE(small.complete());
  small.Begin();
  EXPECT_TRUE(small.complete());
  if (test::kSanitized) GTEST_SKIP() << "sanitizers end a program that asks for so much";
  HostSnapshot any(kCpu);
  any.Begin();
  constexpr int64_t kBytes = int64_t{1} << 50;  // of the address space
  const Tensor huge = Tensor::FromStorage(
      Storage::Wrap(const_cast<void*>(x.raw_data()), kBytes, kCpu, nullptr), DType::kU8, {kBytes});
  EXPECT_EQ(any.Add(huge).raw_data(), x.raw_data());
  EXPECT_FALSE(any.complete());
}

// Of two ranks, rank 1's disk is slow or hangs. The group's timeout is 2 s.
class SlowDiskTest : public CheckpointSaverTest {
 protected:
  using Seconds = std::chrono::duration<double>;
  // Saves, and runs body(saver, all) while rank 1's write lasts that long. The failure of the run.
  std::optional<dist::Failure> Save(
      Seconds lasts, const std::function<void(CheckpointSaver&, dist::ProcessGroup&)>& body) {
    std::optional<dist::Failure> failure;
    dist::RunInProcess(2,
                       [&](dist::ProcessGroup& all) {
                         const auto group = all.Duplicate("checkpoints");
                         {
                           CheckpointSaver saver(CheckpointStore(Path("out")),
                                                 {.group = group.get(),
                                                  .patience = std::chrono::seconds(1),
                                                  .warn = [&](const std::string& t) { Say(t); }});
                           const int rank = all.rank();
                           saver.Save([&](HostSnapshot*) {
                             return FilesOf(rank, 10, [rank, lasts] {
                               if (rank == 1) std::this_thread::sleep_for(lasts);
                             });
                           });
                           body(saver, all);
                         }
                         if (all.rank() == 0) failure = all.control()->failure();
                       },
                       {.timeout = std::chrono::seconds(2),
                        .say = [this](const std::string& text) { Say(text); }});
    return failure;
  }
  void Say(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    said_.push_back(text);
  }

  std::mutex mutex_;
  std::vector<std::string> said_;
};

// Training goes on meanwhile.
TEST_F(SlowDiskTest, TheRankThatWritesIsNamedAndNotGivenUp) {
  const auto failure = Save(Seconds(7), [](CheckpointSaver& saver, dist::ProcessGroup& all) {
    for (bool all_ended = false; !all_ended;) {
      const int64_t ended = saver.Ended();
      const auto of_ranks = dist::GatherValues(all, std::span(&ended, 1));
      all_ended = of_ranks[0][0] != 0 && of_ranks[1][0] != 0;
    }
    EXPECT_NO_THROW(saver.Wait());
  });
  EXPECT_EQ(failure, std::nullopt);
  EXPECT_EQ(CheckpointStore(Path("out")).FindNewest()->step, 10);
  EXPECT_THAT(said_, testing::Contains(testing::MatchesRegex(
                         "rank 1 has been writing a checkpoint for [0-9] s; the other ranks wait "
                         "for it")));
}

// The run ends meanwhile.
TEST_F(SlowDiskTest, TheEndOfTheRunNamesTheRankWhoseDiskHangs) {
  const auto begin = std::chrono::steady_clock::now();
  const auto failure = Save(Seconds(30), [](CheckpointSaver&, dist::ProcessGroup&) {});
  EXPECT_LT(Seconds(std::chrono::steady_clock::now() - begin), Seconds(20));
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->culprits, ElementsAre(1));
  EXPECT_THAT(failure->reason,
              testing::MatchesRegex("rank 1 has been writing a checkpoint for [0-9]+ s, and the "
                                    "run has ended"));
  EXPECT_THAT(said_, testing::Contains(HasSubstr("the disk of out_dir does not answer")));
}

// An exception is the reason, not the disk.
TEST_F(SlowDiskTest, AnExceptionIsToldWithTheRankThatItWaitedFor) {
  std::string reason;
  EXPECT_THAT(MessageOf<InputError>([&] {
                Save(Seconds(30), [&](CheckpointSaver&, dist::ProcessGroup& all) {
                  if (all.rank() == 0) throw InputError("shard 3 is truncated");
                  try {
                    while (true) all.Barrier()->Wait();
                  } catch (const dist::CollectiveError& e) {
                    reason = e.what();
                  }
                });
              }),
              HasSubstr("shard 3 is truncated"));
  EXPECT_THAT(reason, AllOf(HasSubstr("rank 0 gave up: its group was destroyed by an exception"),
                            HasSubstr("rank 1 has been writing a checkpoint for")));
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

// Of a model that is not shared out, as before there were parts.
TEST_F(CheckpointSaverTest, RanksThatWriteNothingNeedNotShareTheFolder) {
  const auto out_of = [&](int rank) { return Path(rank == 0 ? "out" : "other"); };
  OnRanks({.copies = 2}, out_of, /*async=*/true, [&](Rank& rank, CheckpointSaver& saver) {
    saver.Save([&](HostSnapshot* to) { return rank.Files(10, to); });
    saver.Wait();
  });
  EXPECT_EQ(CheckpointStore(Path("out")).FindNewest()->step, 10);
}

TEST_F(CheckpointSaverTest, NothingGrowsWithTheSaves) {
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
      EXPECT_LE(resident[1], resident[0] + (1 << 20));
    }
  }
}

class PartsTest : public CheckpointSaverTest {
 protected:
  void SetUp() override {
    Save({2, 1}, Path("out"), /*async=*/false, {10});
    folder_ = Folder(Path("out"), 10);
  }
  std::string File(const std::string& name) const { return JoinPath(folder_, name); }
  std::string Error(const std::string& kind = "model") const {
    return MessageOf<lockstep::Error>([&] { TensorParts::Open(folder_, kind); });
  }
  // Replaces the only occurrence, in place of the same length.
  void Replace(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = ReadFile(File(name));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    WriteFileAtomically(File(name), text.replace(at, from.size(), to));
  }

  std::string folder_;
};

TEST_F(PartsTest, WhatDoesNotFitTogetherIsRefused) {
  const std::string first = "model.part-00000-of-00002.safetensors";
  const std::string second = "model.part-00001-of-00002.safetensors";
  EXPECT_EQ(Error(), "no error");
  const std::string good = ReadFile(File(second));
  RemoveTree(File(second));
  EXPECT_THAT(Error(), HasSubstr(second));
  WriteFileAtomically(File(second), ReadFile(File(first)));
  EXPECT_THAT(Error(), AllOf(HasSubstr(kPartsIndex), HasSubstr(" are in two parts")));
  const std::vector<SafetensorsItem> none;
  FileWriter empty(File(second));
  WriteSafetensors(empty, none);
  empty.Close();
  EXPECT_THAT(Error(), AllOf(HasSubstr(kPartsIndex), HasSubstr(" are in no part")));
  WriteFileAtomically(File(second), good);
  EXPECT_EQ(Error(), "no error");

  const std::string index = ReadFile(File(kPartsIndex));
  const auto with = [&](const std::string& from, const std::string& to,
                        const std::string& kind = "model") {
    Replace(kPartsIndex, from, to);
    const std::string error = Error(kind);
    WriteFileAtomically(File(kPartsIndex), index);
    EXPECT_THAT(error, HasSubstr(kPartsIndex));
    return error;
  };
  EXPECT_THAT(with("\"format\": 1", "\"format\": 2"), HasSubstr("format 2"));
  EXPECT_THAT(with("\"parts\": 2", "\"parts\": 0"), HasSubstr("\"parts\" is 0"));
  EXPECT_THAT(with("\"model\"", "\"modal\""), HasSubstr("damaged"));
  EXPECT_THAT(with("\"F32\"", "\"F31\"", "model"), HasSubstr("is not a dtype"));
  EXPECT_THAT(with("\"F32\"", "\"F16\"", "model"), HasSubstr("is not f16"));
  EXPECT_THAT(with("\"ln_f.bias\"", "\"ln_g.bias\""), HasSubstr("is no part of a tensor"));
  EXPECT_THAT(with("    76", "    -1"), HasSubstr("negative size"));

  // Of another model: the same elements in another shape.
  GptConfig other = CutGpt();
  other.n_embd = 38;
  other.n_head = 1;
  Gpt model(other);
  model.Materialize(kCpu, 0);
  EXPECT_THAT(MessageOf<InputError>([&] { LoadWeights(folder_, model); }),
              AllOf(HasSubstr("has shape"), HasSubstr("model options differ")));
}

TEST_F(PartsTest, ConsolidatesOnlyPartsAndIntoANewFolder) {
  EXPECT_THAT(MessageOf<InputError>([&] { Consolidate(folder_, folder_); }),
              HasSubstr("exists already"));
  Save({1, 1}, Path("alone"), /*async=*/false, {10});
  EXPECT_THAT(MessageOf<InputError>([&] { Consolidate(Folder(Path("alone"), 10), Path("to")); }),
              HasSubstr("Hugging Face folders themselves"));
  // Nothing beside the new folder is touched.
  MakeDirectories(Path("to.tmp"));
  WriteFileAtomically(Path("to.tmp/notes"), "mine");
  Consolidate(folder_, Path("to"));
  EXPECT_EQ(ReadFile(Path("to.tmp/notes")), "mine");
  EXPECT_TRUE(PathExists(Path("to/config.json")));
  for (const std::string& name : ListDirectory(Path(""))) {
    EXPECT_FALSE(name.starts_with(".tmp")) << name;
  }
}

}  // namespace
}  // namespace lockstep::models
