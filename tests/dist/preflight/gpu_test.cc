// The measurements among GPUs, real or simulated, over NCCL.
#include <cuda_runtime.h>
#include <gmock/gmock-more-matchers.h>

#include <algorithm>
#include <future>

#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "core/cuda/handles.h"
#include "dist/groups/agreement.h"
#include "dist/preflight/gpu_facts.h"
#include "dist/preflight/judgement.h"
#include "dist/preflight/measure.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/worlds.h"

namespace lockstep::dist {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kRanks = 3;

// What rank 0 finds. `before` is called on each rank before it measures, `after` after it.
PreflightFacts Measure(const std::function<void(int rank, cudaStream_t)>& before = {},
                       const std::function<void(int rank)>& after = {}) {
  PreflightFacts found;
  const auto errors = InWorld(kRanks, [&](World& world) {
    const Device device{DeviceType::kCuda, world.rank()};
    cuda::SetDevice(device);
    const cuda::OwnedStream stream(device);
    const StreamGuard guard(stream);
    const auto control = world.Group({.name = "control"});
    const auto data = world.Group({.name = "data", .device = device});
    PreflightFacts facts{.patience = 5};
    for (int r = 0; r < kRanks; ++r) {
      facts.ranks.push_back({r, "node0"});
      facts.ranks.back().gpu = FactsOfGpu({DeviceType::kCuda, r});
    }
    cuda::SetDevice(device);
    if (before) before(world.rank(), static_cast<cudaStream_t>(stream.get().handle.get()));
    facts.pairs = MeasurePairs(*control, data, MachinesOf(facts.ranks), 5s);
    if (after) after(world.rank());
    const bool answered = std::ranges::all_of(facts.pairs, &PairFacts::answered);
    if (answered) facts.sum = MeasureSum(*control, data, 1e8, 60s);
    if (world.rank() == 0) found = facts;
    MeetBeforeThrowing(*control);
    if (!answered) data->Abort("no answer");
  });
  EXPECT_THAT(errors, Each(""));
  return found;
}

TEST(MeasureOnGpus, EveryPairOnceAndTheSum) {
  SKIP_WITHOUT_GPUS(kRanks);
  const PreflightFacts found = Measure();
  ASSERT_EQ(found.pairs.size(), 3u);
  for (const PairFacts& p : found.pairs) {
    EXPECT_TRUE(p.answered && p.right);
    EXPECT_GT(p.latency, 0);
    EXPECT_GT(p.bandwidth, 0);
  }
  ASSERT_TRUE(found.sum);
  EXPECT_TRUE(found.sum->answered && found.sum->right);
  EXPECT_THAT(Judge(found).stops, testing::IsEmpty());
}

// As where a GPU's accesses to another get lost: its work never ends, and no call fails.
TEST(MeasureOnGpus, GpusThatDoNotAnswerAreNamedAndWhatToLookAt) {
  SKIP_WITHOUT_GPUS(kRanks);
  std::promise<void> release;
  std::shared_future<void> released(release.get_future());
  const auto begin = std::chrono::steady_clock::now();
  const PreflightFacts found = Measure(
      [&](int rank, cudaStream_t stream) {
        if (rank != 1) return;
        const auto wait = [](void* until) {
          static_cast<std::shared_future<void>*>(until)->wait();
        };
        LS_CUDA(cudaLaunchHostFunc(stream, wait, &released));
      },
      [&](int rank) {
        if (rank == 1) release.set_value();
      });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
  const auto stops = Judge(found).stops;
  ASSERT_EQ(stops.size(), 1u);
  EXPECT_THAT(stops[0], AllOf(testing::ContainsRegex("ranks (0 and 1|1 and 2) on node0 did not"),
                              HasSubstr("ACS"), HasSubstr("IOMMU")));
}

TEST(MeasureOnGpus, VersionsAreTold) {
  SKIP_WITHOUT_GPUS(1);
  const auto versions = GpuVersions();
  for (const char* const name : {"CUDA driver", "CUDA runtime", "cuBLASLt", "NCCL"}) {
    ASSERT_TRUE(versions.contains(name)) << name;
    EXPECT_THAT(versions.at(name), testing::MatchesRegex("[1-9][0-9]*(\\.[0-9]+)+"));
  }
}

}  // namespace
}  // namespace lockstep::dist
