// Ranks that find each other, or say which are missing (reliability promise 20).
#include "dist/world.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <filesystem>
#include <thread>

#include "core/io/file.h"
#include "core/io/json.h"
#include "dist/control/file_store.h"
#include "dist/control/socket.h"
#include "dist/groups/gloo_group.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

int FreePort() { return PortOf(Listen("127.0.0.1", 0)); }

Rendezvous Of(int rank, int size, int port) {
  Rendezvous r;
  r.rank = r.local_rank = rank;
  r.world_size = r.local_world_size = size;
  r.master_port = port;
  r.secret = "secret";
  r.source = "RANK";
  return r;
}

// Joins each on its own thread; returns their errors, "" for none.
std::vector<std::string> Join(const std::vector<Rendezvous>& ranks,
                              std::chrono::milliseconds timeout) {
  std::vector<std::string> errors(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        World world(ranks[i], timeout);
        MakeGlooGroup(world)->Barrier()->Synchronize();
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
  const auto group = MakeGlooGroup(world);
  const Tensor x = Tensor::Full({3}, 2, DType::kF32);
  group->AllReduce(x)->Wait();
  EXPECT_THAT(x.ToVector<float>(), Each(2.0f));
}

TEST(WorldTest, RanksFindEachOtherOverTcp) {
  const int port = FreePort();
  EXPECT_THAT(Join({Of(2, 3, port), Of(1, 3, port), Of(0, 3, port)}, seconds(120)), Each(""));
}

// As next to torchrun's agent: the first ports belong to another program, which never answers, and
// to another run.
TEST(WorldTest, RanksFindEachOtherAtTheFirstFreePort) {
  const auto three_in_a_row = [] {
    while (true) {
      try {
        const int port = FreePort();
        return std::pair(Listen("127.0.0.1", port),
                         std::make_unique<TcpStoreServer>(
                             TcpStoreAddress{"127.0.0.1", port + 1, "secret/other"}));
      } catch (const Error&) {  // already in use
      }
    }
  }();
  std::vector<Rendezvous> ranks;
  for (int r = 2; r >= 0; --r) {
    ranks.push_back(Of(r, 3, PortOf(three_in_a_row.first)));
    ranks.back().port_choices = 8;
    ranks.back().run_id = "this";
  }
  EXPECT_THAT(Join(ranks, seconds(120)), Each(""));
  ranks.pop_back();  // rank 0
  EXPECT_THAT(Join(ranks, seconds(2)), Each(HasSubstr("the store of rank 0 at 127.0.0.1:")));
}

// The store that an earlier run has left at the first port ends only after rank 1 has joined it.
TEST(WorldTest, ARankLeavesAStoreThatEnds) {
  Rendezvous ranks[2] = {Of(0, 2, FreePort()), Of(1, 2, 0)};
  ranks[1].master_port = ranks[0].master_port;
  for (Rendezvous& r : ranks) r.port_choices = 8;
  auto stale = std::make_unique<TcpStoreServer>(
      TcpStoreAddress{"127.0.0.1", ranks[0].master_port, ranks[0].secret});
  std::vector<std::string> errors;
  std::thread first([&] {
    ConnectTcpStore(stale->address(), seconds(60))->Get("world/rank/1", seconds(60));
    stale.reset();
    errors = Join({ranks[0]}, seconds(20));
  });
  EXPECT_THAT(Join({ranks[1]}, seconds(20)), Each(""));
  first.join();
  EXPECT_THAT(errors, Each(""));
}

TEST(WorldTest, ARankWithoutDescriptorsSaysSoAtOnce) {
  Rendezvous rank = Of(1, 2, FreePort());
  rank.port_choices = 8;
  rlimit before = {};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none = {3, before.rlim_max};  // stdin, stdout and stderr
  const auto begin = std::chrono::steady_clock::now();
  setrlimit(RLIMIT_NOFILE, &none);
  const std::string message =
      test::MessageOf<NoDescriptorsError>([&] { World world(rank, seconds(20)); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_THAT(message, HasSubstr("ulimit -n 4096"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(10));
}

TEST(WorldTest, RanksFindEachOtherInAFolder) {
  std::vector<Rendezvous> ranks = {Of(0, 2, 0), Of(1, 2, 0)};
  for (Rendezvous& r : ranks) r.store_folder = StrCat(testing::TempDir(), "world_", getpid());
  EXPECT_THAT(Join(ranks, seconds(120)), Each(""));
}

TEST(WorldTest, ListsTheRanksThatAreMissing) {
  const int port = FreePort();
  EXPECT_THAT(Join({Of(0, 5, port), Of(3, 5, port)}, seconds(2)),
              Each(AllOf(HasSubstr("ranks 1, 2 and 4 of 5 did not reach the store of rank 0 at "),
                         HasSubstr("were they started"))));
  std::vector<Rendezvous> slurm = {Of(0, 2, FreePort())};
  slurm[0].source = "SLURM_PROCID";
  EXPECT_THAT(Join(slurm, seconds(1)), Each(AllOf(HasSubstr("rank 1 of 2"), HasSubstr("srun"))));
}

TEST(WorldTest, WithoutRank0NobodyServes) {
  EXPECT_THAT(Join({Of(1, 2, FreePort())}, seconds(1)),
              Each(HasSubstr("cannot connect to 127.0.0.1")));
}

TEST(WorldTest, TwoProcessesOfOneRankAreAnErrorOnEveryRank) {
  const int port = FreePort();
  // Rank 2 is missing, because its process believes that it is rank 1.
  const auto errors = Join({Of(0, 3, port), Of(1, 3, port), Of(1, 3, port)}, seconds(120));
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1 is claimed by process "),
                                 HasSubstr("needs a RANK of its own"))));
}

// Another program has written the keys with which ranks 1 and 0 identify themselves.
TEST(WorldTest, AValueThatNoRankHasWrittenIsShown) {
  for (const std::string note : {"garbage", R"({"size":"two","host":7})", "[]"}) {
    const std::string folder = JoinPath(testing::TempDir(), StrCat("forged_", note.size()));
    std::filesystem::remove_all(folder);
    auto rank = Of(0, 2, 0);
    rank.store_folder = folder;
    std::string error;
    std::thread first([&] { error = Join({rank}, seconds(60))[0]; });
    OpenFileStore(folder, 1, seconds(60))->Set("world/rank/1", note);
    first.join();
    EXPECT_THAT(error, AllOf(HasSubstr(StrCat("holds ", Quoted(note), " where rank 1")),
                             HasSubstr("Choose another MASTER_PORT, or another folder")));
  }
}

TEST(WorldTest, RanksThatDisagreeOnTheSizeAreAnErrorOnEveryRank) {
  const int port = FreePort();
  const auto errors = Join({Of(0, 3, port), Of(1, 2, port)}, seconds(120));
  EXPECT_THAT(errors, Each(HasSubstr("ranks disagree on the world size")));
}

}  // namespace
}  // namespace lockstep::dist
