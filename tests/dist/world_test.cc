// Ranks that find each other, or say who is missing (reliability promise 20).
#include "dist/world.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

#include "dist/gloo_group.h"
#include "dist/socket.h"
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

// Each on a thread; what they throw, "" for nothing.
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

TEST(WorldTest, RanksFindEachOtherInAFolder) {
  std::vector<Rendezvous> ranks = {Of(0, 2, 0), Of(1, 2, 0)};
  for (Rendezvous& r : ranks) r.store_folder = StrCat(testing::TempDir(), "world_", getpid());
  EXPECT_THAT(Join(ranks, seconds(120)), Each(""));
}

TEST(WorldTest, ListsTheRanksThatAreMissing) {
  const int port = FreePort();
  EXPECT_THAT(Join({Of(0, 5, port), Of(3, 5, port)}, seconds(2)),
              Each(AllOf(HasSubstr("ranks 1, 2, 4 of 5 did not come to the store of rank 0 at "),
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
  // Rank 2 is missing, because somebody thinks to be rank 1.
  const auto errors = Join({Of(0, 3, port), Of(1, 3, port), Of(1, 3, port)}, seconds(120));
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 1 is claimed by process "),
                                 HasSubstr("needs a RANK of its own"))));
}

TEST(WorldTest, RanksThatDisagreeOnTheSizeAreAnErrorOnEveryRank) {
  const int port = FreePort();
  const auto errors = Join({Of(0, 3, port), Of(1, 2, port)}, seconds(120));
  EXPECT_THAT(errors, Each(HasSubstr("ranks disagree on how many they are")));
}

}  // namespace
}  // namespace lockstep::dist
