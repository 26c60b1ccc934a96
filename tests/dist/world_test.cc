// Ranks that find each other, or say which are missing (reliability promise 20).
#include "dist/world.h"

#include <gmock/gmock-matchers.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <thread>

#include "core/io/file.h"
#include "core/io/json.h"
#include "dist/control/root_file.h"
#include "dist/control/socket.h"
#include "dist/groups/pause.h"
#include "tests/dist/worlds.h"
#include "tests/message_of.h"
#include "tests/process_state.h"

namespace lockstep::dist {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr auto Of = RendezvousOf;

// Joins each on its own thread; returns their errors, "" for none.
std::vector<std::string> Join(const std::vector<Rendezvous>& ranks,
                              std::chrono::milliseconds timeout) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        World world(ranks[i], {.timeout = timeout});
        world.Group()->Barrier()->Synchronize();
      } catch (const Error& e) {
        errors[i] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

TEST(WorldTest, OneRankNeedsNobody) {
  World world(Of(0, 1, 0));
  const auto group = world.Group();
  const Tensor x = Tensor::Full({3}, 2, DType::kF32);
  group->AllReduce(x)->Wait();
  EXPECT_THAT(x.ToVector<float>(), Each(2.0f));
}

TEST(WorldTest, RanksFindEachOtherOverTcp) {
  const int port = FreePort();
  EXPECT_THAT(Join({Of(2, 3, port), Of(1, 3, port), Of(0, 3, port)}, seconds(120)), Each(""));
}

// As next to torchrun's agent: the first port belongs to another program, which never answers, and
// the next to another run.
TEST(WorldTest, RanksFindEachOtherAtTheFirstFreePort) {
  const int port = FreePort();
  const Socket silent = Listen("127.0.0.1", port);
  std::vector<Rendezvous> ranks;
  for (const char* const run : {"other", "this"}) {
    for (int r = 2; r >= 0; --r) {
      ranks.push_back(Of(r, 3, port));
      ranks.back().port_choices = 8;
      ranks.back().run_id = run;
    }
  }
  EXPECT_THAT(Join(ranks, seconds(120)), Each(""));
  ranks.resize(2);  // without rank 0
  EXPECT_THAT(Join(ranks, seconds(2)), Each(HasSubstr("rank 0 at 127.0.0.1:")));
}

// Rank 1 of an earlier run has joined its rank 0, which still serves when this run's rank 1 starts.
TEST(WorldTest, ARankLeavesARunThatHasMetAndEnds) {
  const int port = FreePort();
  const Rendezvous ranks[2] = {Of(0, 2, port), Of(1, 2, port)};
  std::unique_ptr<World> earlier[2];
  std::thread other([&] { earlier[1] = std::make_unique<World>(ranks[1]); });
  earlier[0] = std::make_unique<World>(ranks[0]);
  other.join();
  std::vector<std::string> errors;
  std::thread again([&] { errors = Join({ranks[1]}, seconds(60)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  earlier[1].reset();
  earlier[0].reset();
  EXPECT_THAT(Join({ranks[0]}, seconds(60)), Each(""));
  again.join();
  EXPECT_THAT(errors, Each(""));
}

// Launchers that set no secret: rank 0 leaves one in a file that only this user can read.
TEST(WorldTest, RanksOfOneMachineNeedNoSecretOfTheUsers) {
  const int port = FreePort();
  std::vector<Rendezvous> ranks = {Of(0, 2, port), Of(1, 2, port)};
  for (Rendezvous& r : ranks) r.secret.clear();
  // What an earlier run has left behind is not taken for this one's.
  const RootFile old(RootFile::PathOf(port), {"127.0.0.1", port, "old secret"});
  std::vector<std::string> errors;
  std::thread first([&] { errors = Join({ranks[1]}, seconds(60)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  World world(ranks[0]);
  const std::string path = RootFile::PathOf(port);
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_NE(RootFile::Read(path).secret, "old secret");
  world.Group()->Barrier()->Synchronize();
  first.join();
  EXPECT_THAT(errors, Each(""));
  // A file that others could have written is not believed.
  std::filesystem::permissions(path, std::filesystem::perms::all);
  EXPECT_THAT(test::MessageOf<ConnectionError>([&] { RootFile::Read(path); }),
              HasSubstr("set LOCKSTEP_SECRET"));
}

TEST(RootFileTest, IsRemovedOnlyByTheOneThatWroteIt) {
  const std::string path = StrCat(testing::TempDir(), "root_", getpid());
  auto earlier = std::make_unique<RootFile>(path, RootAddress{"127.0.0.1", 1, "earlier"});
  auto later = std::make_unique<RootFile>(path, RootAddress{"127.0.0.1", 2, "later"});
  earlier.reset();
  EXPECT_EQ(RootFile::Read(path).secret, "later");
  later.reset();
  EXPECT_THAT(test::MessageOf<ConnectionError>([&] { RootFile::Read(path); }),
              HasSubstr("rank 0 has not written"));
}

// As where another user has taken the name.
TEST(RootFileTest, IfItCannotBeWrittenTheErrorSaysWhatToDo) {
  const std::string path = StrCat(testing::TempDir(), "taken_", getpid());
  std::filesystem::create_directory(path);
  EXPECT_THAT(test::MessageOf<ConnectionError>([&] {
                RootFile(path, RootAddress{"127.0.0.1", 1, "secret"});
              }),
              AllOf(HasSubstr("rank 0 cannot write " + path), HasSubstr("set LOCKSTEP_SECRET")));
  EXPECT_FALSE(std::filesystem::exists(StrCat(path, ".", getpid())));  // it holds the secret
  std::filesystem::remove(path);
}

TEST(RootFileTest, APipeIsNotRead) {
  const std::string path = StrCat(testing::TempDir(), "pipe_", getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  auto reads = std::async(std::launch::async, [&] {
    return test::MessageOf<ConnectionError>([&] { RootFile::Read(path); });
  });
  if (reads.wait_for(seconds(30)) != std::future_status::ready) {
    ADD_FAILURE() << "it waits for a writer";
    std::ofstream(path) << "{}";
  }
  EXPECT_THAT(reads.get(), HasSubstr("is not a file that only this user can access"));
  std::filesystem::remove(path);
}

TEST(WorldTest, ASecretIsNeededWhereOtherMachinesReach) {
  Rendezvous rank = Of(0, 2, FreePort());
  rank.secret.clear();
  rank.master_addr = "192.0.2.1";  // by its route, not reached
  EXPECT_THAT(test::MessageOf<Error>([&] { World world(rank, {.timeout = seconds(2)}); }),
              testing::AnyOf(HasSubstr("LOCKSTEP_SECRET"), HasSubstr("no route")));
}

// In a process of its own, since a limit that has been lowered for good cannot be raised again.
TEST(WorldTest, ARankWithoutDescriptorsSaysSoAtOnce) {
  Rendezvous rank = Of(1, 2, FreePort());
  rank.port_choices = 8;
  const auto begin = std::chrono::steady_clock::now();
  const auto join = [&] {
    // The first time that it sees a type, UBSan needs descriptors (a pipe) to look at an object.
    EXPECT_THROW(throw NoDescriptorsError(""), ConnectionError);
    const rlimit none = {3, 3};  // stdin, stdout and stderr
    setrlimit(RLIMIT_NOFILE, &none);
    std::cerr << test::MessageOf<NoDescriptorsError>(
        [&] { World world(rank, {.timeout = seconds(20)}); });
    std::_Exit(0);
  };
  EXPECT_EXIT(join(), testing::ExitedWithCode(0), HasSubstr("ulimit -n 4096"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(10));
}

TEST(WorldTest, RanksFindEachOtherInAFolder) {
  std::vector<Rendezvous> ranks = {Of(0, 2, 0), Of(1, 2, 0)};
  for (Rendezvous& r : ranks) r.store_folder = StrCat(testing::TempDir(), "world_", getpid());
  EXPECT_THAT(Join(ranks, seconds(120)), Each(""));
}

// 2 x 2 x 2 x 2 ranks, with a group for each axis and for each pair of axes. A group costs a rank
// the thread that runs its calls, with an event to wake it; connections only where data move.
TEST(WorldTest, GroupsOfAMeshCostNothingOnTheControlSide) {
  const std::string axes[] = {"pp", "dp", "cp", "tp"};
  constexpr int kRanks = 16, kGroups = 10;
  std::barrier<> meet(kRanks);
  // What this process has while all ranks wait, once the connections of their meeting have ended.
  test::ProcessState now;
  const auto state = [&](const World& world) {
    meet.arrive_and_wait();
    if (world.rank() == 0) {  // looking takes descriptors too
      std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      now = test::ProcessStateOf();
    }
    meet.arrive_and_wait();
    return now;
  };
  EXPECT_THAT(InWorld(kRanks,
                      [&](World& world) {
                        const Mesh mesh({.pp = 2, .dp = 2, .cp = 2, .tp = 2}, world.rank(),
                                        world.size());
                        const test::ProcessState before = state(world);
                        std::vector<std::shared_ptr<ProcessGroup>> groups;
                        for (int a = 0; a < 4; ++a) {
                          for (int b = a; b < 4; ++b) {
                            const std::vector<std::string> along =
                                a == b ? std::vector{axes[a]} : std::vector{axes[a], axes[b]};
                            groups.push_back(world.Group(mesh, along));
                            EXPECT_EQ(groups.back()->members(), mesh.RanksAlong(along));
                            EXPECT_EQ(groups.back()->name(), "world." + mesh.GroupName(along));
                          }
                        }
                        const test::ProcessState after = state(world);
                        EXPECT_EQ(after.threads - before.threads, kRanks * kGroups);
                        EXPECT_EQ(after.descriptors - before.descriptors, kRanks * kGroups);
                        for (const auto& group : groups) {
                          const Tensor x = Tensor::Full({5}, 1 << world.rank(), DType::kF32);
                          group->AllReduce(x)->Wait();
                          float sum = 0;
                          for (const int r : group->members()) sum += static_cast<float>(1 << r);
                          EXPECT_THAT(x.ToVector<float>(), Each(sum)) << group->name();
                        }
                      }),
              Each(""));
}

TEST(WorldTest, RanksThatMakeDifferentGroupsAreToldSo) {
  const auto errors = InWorld(4, [](World& world) {
    world.Group({.name = "all"});
    const Mesh mesh({.tp = world.rank() == 2 ? 4 : 2}, world.rank(), world.size());
    world.Group(mesh, {"tp"});
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks 0, 1 and 3: 'world' along tp of the mesh dp 2 x "
                                           "tp 2; rank 2: 'world' along tp of the mesh tp 4"),
                                 HasSubstr("in the same order"))));
}

TEST(WorldTest, ARankThatMakesNoGroupIsNamed) {
  std::atomic<int> waiting{3};
  const auto errors = InWorld(4, [&](World& world) {
    if (world.rank() == 2) {
      while (waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    try {
      world.Group({.name = "all", .timeout = seconds(1)});
    } catch (const ConnectionError&) {
      --waiting;
      throw;
    }
  });
  for (const int r : {0, 1, 3}) {
    EXPECT_EQ(
        errors[static_cast<size_t>(r)],
        "rank 2 did not make the group 'all' of all ranks within 1 s, as others do: all ranks "
        "must call World::Group");
  }
}

// Rank 1 works for three timeouts while the others already make the next group.
TEST(WorldTest, APauseCountsForGroupsThatAreMade) {
  const auto errors = InWorld(3, [](World& world) {
    const auto group = world.Group({.name = "all"});
    if (world.rank() == 1) {
      const Pause pause(group.get(), "writing a checkpoint");
      std::this_thread::sleep_for(seconds(3));
    }
    world.Group({.name = "more", .timeout = seconds(1)});
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(WorldTest, AGroupNeedsItsOwnRanksMesh) {
  World world(Of(0, 1, 0));
  EXPECT_THAT(test::MessageOf<ArgumentError>([&] { world.Group(Mesh({.dp = 2}, 1, 2), {"dp"}); }),
              HasSubstr("Mesh(sizes, world.rank(), world.size())"));
}

// As on Debian, whose /etc/hosts gives a machine's own name a loopback address.
TEST(WorldTest, Rank0IsFoundWhereItsMachineKnowsItselfOnlyByTheLoopbackDevice) {
  std::string outward;
  try {
    outward = OutwardAddress();
  } catch (const ConnectionError& e) {
    GTEST_SKIP() << e.what();
  }
  if (!IsLoopback(HostName())) GTEST_SKIP() << "this machine's name has another address";
  const int port = FreePort();
  // Rank 1 is on its machine, rank 2 on another.
  std::vector<Rendezvous> ranks = {Of(0, 3, port), Of(1, 3, port), Of(2, 3, port)};
  for (Rendezvous& r : ranks) {
    r.secret = "of all";
    r.local_world_size = r.rank == 2 ? 1 : 2;
    r.master_addr = r.rank == 2 ? outward : HostName();
  }
  EXPECT_THAT(Join(ranks, seconds(20)), Each(""));
}

TEST(WorldTest, ListsTheRanksThatAreMissing) {
  const int port = FreePort();
  testing::internal::CaptureStderr();
  EXPECT_THAT(Join({Of(0, 5, port), Of(3, 5, port)}, seconds(2)),
              Each(AllOf(HasSubstr("ranks 1, 2 and 4 of 5 did not reach rank 0 at "),
                         HasSubstr("were all ranks started"))));
  // While it waits, too.
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("rank 0 has waited for "),
                    HasSubstr(" for ranks 1, 2 and 4 of 5 to reach rank 0 at "),
                    HasSubstr("were all ranks started"), testing::Not(HasSubstr("rank 3 has"))));
  std::vector<Rendezvous> slurm = {Of(0, 2, FreePort())};
  slurm[0].source = "SLURM_PROCID";
  EXPECT_THAT(Join(slurm, seconds(1)), Each(AllOf(HasSubstr("rank 1 of 2"), HasSubstr("srun"))));
}

TEST(WorldTest, WithoutRank0NobodyServes) {
  EXPECT_THAT(Join({Of(1, 2, FreePort())}, seconds(1)),
              Each(AllOf(HasSubstr("rank 0 at 127.0.0.1:"), HasSubstr("Connection refused"))));
}

TEST(WorldTest, TwoProcessesOfOneRankAreAnErrorOnEveryRank) {
  const int port = FreePort();
  // Rank 2 is missing, because its process believes that it is rank 1.
  const auto errors = Join({Of(0, 3, port), Of(1, 3, port), Of(1, 3, port)}, seconds(120));
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1 is claimed by process "),
                                 HasSubstr("needs a RANK of its own"))));
}

TEST(WorldTest, RanksThatDisagreeOnTheSizeAreAnErrorOnEveryRank) {
  const int port = FreePort();
  const auto errors = Join({Of(0, 3, port), Of(1, 2, port)}, seconds(120));
  EXPECT_THAT(errors, Each(HasSubstr("ranks disagree on the world size")));
}

}  // namespace
}  // namespace lockstep::dist
