// CUDA and NCCL calls that never return: the other groups hear of a failure, other ranks get
// answers, and the groups' destructors end all the same.
#include <cuda_runtime.h>
#include <gmock/gmock-more-matchers.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "core/cuda/device.h"
#include "cudasim/hang.h"
#include "dist/groups/host_group.h"
#include "dist/groups/nccl_group.h"
#include "dist/groups/tcp_transport.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/gpu_test.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

using NcclHangTest = test::SimulatedGpuTest;

constexpr auto kSoon = std::chrono::seconds(60);

void SleepUntil(const std::function<bool()>& happened) {
  while (!happened()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// Two ranks, on the default streams of their GPUs: the end of another stream would wait for the
// work that hangs.
void RunTwoRanks(const std::function<void(GpuRank)>& body) {
  auto planes = MakeLocalPlanes(2, {.loops = 2});
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      GpuRank rank = {std::move(planes[r]), {}};
      rank.control->WaitUntilOpen();
      rank.options.device = {DeviceType::kCuda, static_cast<int>(r)};
      cuda::SetDevice(rank.options.device);
      body(std::move(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NcclHangTest, AnAbortThatNeverReturnsHoldsUpNobody) {
  SKIP_WITHOUT_GPUS(2);
  std::atomic<int> met{0}, heard{0}, destroyed{0};
  std::future<void> ranks;
  {
    const cudasim::runtime::Hang hang("ncclCommAbort");
    ranks = std::async(std::launch::async, [&] {
      RunTwoRanks([&](GpuRank r) {
        auto gpus = MakeNcclGroup(r.control, r.options);
        // Made later: it hears later.
        auto host = MakeHostGroup(MakeTcpTransport(r.control, "host", AllRanks(2)), r.control,
                                  {.name = "host"});
        // Never ends: rank 0 does not take part.
        if (r.control->rank() == 1) gpus->AllReduce(Ones(*gpus));
        host->Barrier()->Wait();
        ++met;
        if (r.control->rank() == 0) {
          SleepUntil([&] { return met == 2; });  // an abort would end a barrier not yet left
          gpus->Abort("enough");
        }
        EXPECT_THAT(MessageOf<CollectiveError>([&] {
                      while (true) host->Barrier()->Wait();  // until the news is here
                    }),
                    HasSubstr("rank 0 gave up: enough"));
        EXPECT_THAT(MessageOf<CollectiveError>([&] { gpus->Barrier()->Synchronize(); }),
                    HasSubstr("rank 0 gave up: enough"));
        ++heard;
        SleepUntil([&] { return hang.calls() == 2; });
        host = nullptr;
        gpus = nullptr;
        r.control = nullptr;
        ++destroyed;
      });
    });
    EXPECT_EQ(ranks.wait_for(kSoon), std::future_status::ready)
        << heard << " ranks have heard, " << destroyed << " have ended";
    EXPECT_EQ(hang.calls(), 2);
  }
  ranks.get();
}

TEST_F(NcclHangTest, AQueryThatNeverReturnsHoldsUpNoAnswer) {
  SKIP_WITHOUT_GPUS(2);
  std::atomic<bool> hangs{false}, answered{false};
  std::future<void> ranks;
  {
    const cudasim::runtime::Hang hang("cudaEventQuery");
    ranks = std::async(std::launch::async, [&] {
      RunTwoRanks([&](GpuRank r) {
        const auto gpus = MakeNcclGroup(r.control, r.options);
        if (r.control->rank() == 1) {
          gpus->AllReduce(Ones(*gpus), ReduceOp::kSum, "bucket 0");
          SleepUntil([&] { return hang.calls() > 0; });  // its watchdog
          hangs = true;
          SleepUntil([&] { return answered.load(); });
        } else {
          SleepUntil([&] { return hangs.load(); });
          const auto answers = r.control->Ask({1}, TopicOf("world/board"), "calls at 1",
                                              std::chrono::steady_clock::now() + kSoon);
          EXPECT_THAT(answers.silent, IsEmpty());
          EXPECT_THAT(answers.by_rank, Contains(Pair(1, Not(""))));
          answered = true;
          gpus->Abort("enough");
        }
        EXPECT_THAT(MessageOf<CollectiveError>([&] { gpus->Barrier()->Synchronize(); }),
                    HasSubstr("rank 0 gave up: enough"));
      });
    });
    SleepUntil([&, until = std::chrono::steady_clock::now() + kSoon] {
      return answered || std::chrono::steady_clock::now() > until;
    });
    EXPECT_TRUE(answered);
  }
  answered = true;
  ranks.get();
}

}  // namespace
}  // namespace lockstep::dist
