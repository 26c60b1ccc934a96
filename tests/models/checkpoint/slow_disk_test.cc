#include <gmock/gmock-matchers.h>

#include <mutex>
#include <optional>
#include <thread>

#include "dist/control/control_plane.h"
#include "dist/groups/agreement.h"
#include "tests/message_of.h"
#include "tests/models/checkpoint/saved_ranks.h"

namespace lockstep::models {
namespace {

using test::MessageOf;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of two ranks, rank 1's disk is slow or hangs. The group's timeout is 2 s.
class SlowDiskTest : public SavedRanksTest {
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

}  // namespace
}  // namespace lockstep::models
