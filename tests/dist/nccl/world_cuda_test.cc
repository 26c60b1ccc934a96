// Groups on GPUs, as a world makes them, real or simulated.
#include <gmock/gmock-matchers.h>

#include <atomic>
#include <barrier>
#include <optional>
#include <thread>

#include "core/cuda/device.h"
#include "core/cuda/handles.h"
#include "dist/flight/flight_recorder.h"
#include "dist/groups/pause.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/worlds.h"
#include "tests/message_of.h"
#include "tests/process_state.h"

namespace lockstep::dist {
namespace {

using namespace std::chrono_literals;
using lockstep::test::MessageOf;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kRanks = 4;

// InWorld, each rank with its own GPU.
std::vector<std::string> InWorldOfGpus(const std::function<void(World&, Device)>& body) {
  return InWorld(kRanks, [&](World& world) {
    const Device device{DeviceType::kCuda, world.rank()};
    cuda::SetDevice(device);
    const cuda::OwnedStream stream(device);
    const StreamGuard guard(stream);
    body(world, device);
  });
}

Mesh MeshOf(const World& world) { return Mesh({.dp = 2, .tp = 2}, world.rank(), world.size()); }

// Every rank waits for the others, slowly: longer than the shorter of two timeouts.
void MeetLate(ProcessGroup& g) {
  if (g.rank() == 1) std::this_thread::sleep_for(4s);
  const Tensor x = Ones(g);
  g.AllReduce(x)->Synchronize();
  EXPECT_THAT(x.ToVector<float>(), Each(static_cast<float>(g.size())));
}

// Whether the group of all ranks, or one of some, is the first.
TEST(WorldOnGpus, GroupsHaveTheOptionsOfTheirCaller) {
  SKIP_WITHOUT_GPUS(kRanks);
  for (const bool all_first : {true, false}) {
    std::atomic<int> told{0}, failed{0};
    const auto errors = InWorldOfGpus([&](World& world, Device device) {
      const auto recorder = std::make_shared<FlightRecorder>(
          StrCat(testing::TempDir(), "no such folder/flight"), world.rank(), kRanks);
      std::shared_ptr<ProcessGroup> all;
      const auto make_all = [&] {
        all = world.Group({.name = "all", .device = device, .timeout = 1min});
      };
      if (all_first) make_all();
      const auto tp = world.Group(MeshOf(world), {"tp"},
                                  {.name = "short",
                                   .device = device,
                                   .timeout = 2s,
                                   .check_every_call = true,
                                   .recorder = recorder,
                                   .say = [&](const std::string&) { ++told; }});
      if (!all_first) make_all();
      EXPECT_EQ(all->options().timeout, 1min);
      EXPECT_FALSE(all->options().check_every_call);
      EXPECT_EQ(all->options().recorder, nullptr);
      EXPECT_EQ(tp->options().timeout, 2s);
      EXPECT_TRUE(tp->options().check_every_call);
      EXPECT_EQ(tp->options().recorder, recorder);
      MeetLate(*all);
      {
        std::optional<Pause> pause;
        if (tp->rank() == 1) pause.emplace(tp.get(), "writing a checkpoint");
        MeetLate(*tp);
      }
      tp->Barrier()->Synchronize();
      if (world.rank() == 3) {
        while (failed < kRanks - 1) std::this_thread::sleep_for(5ms);
        return;
      }
      try {
        while (true) tp->AllReduce(Ones(*tp))->Synchronize();
      } catch (const CollectiveError&) {
        ++failed;
        throw;
      }
    });
    EXPECT_GT(told, 0);
    for (const size_t r : {0, 1, 2}) {
      EXPECT_THAT(errors[r], AllOf(HasSubstr(StrCat("rank ", r, ", group 'short.tp[dp=", r / 2)),
                                   HasSubstr("it did not end within 2 s"), HasSubstr("rank 3")));
    }
  }
}

// With `check_every_call`, before NCCL is called.
TEST(WorldOnGpus, AGroupOfSomeComparesEachCallIfItsCallerWants) {
  SKIP_WITHOUT_GPUS(kRanks);
  const auto errors = InWorldOfGpus([](World& world, Device device) {
    const auto all = world.Group({.name = "all", .device = device});
    const auto tp =
        world.Group(MeshOf(world), {"tp"}, {.device = device, .check_every_call = true});
    const Tensor x = Ones(*tp);
    tp->AllReduce(world.rank() == 3 ? x.Slice(0, 0, 50) : x)->Synchronize();
    all->Barrier()->Synchronize();
  });
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_THAT(errors[r], AllOf(HasSubstr("rank 2 all_reduce #1 (f32[100], sum)"),
                                 HasSubstr("rank 3 all_reduce #1 (f32[50], sum)")));
  }
  // The others hear of which group, in the barrier or still in their own group.
  for (const size_t r : {0, 1}) {
    EXPECT_THAT(errors[r], HasSubstr("of group 'world.tp[dp=1]'"));
  }
}

// The group that was made first is destroyed before others are made.
TEST(WorldOnGpus, AllGroupsHaveOneWatchdogWhicheverWasFirst) {
  SKIP_WITHOUT_GPUS(kRanks);
  std::barrier<> meet(kRanks);
  std::atomic<int64_t> with_two{0}, with_others{0};
  const auto errors = InWorldOfGpus([&](World& world, Device device) {
    const auto threads = [&](std::atomic<int64_t>* now) {
      meet.arrive_and_wait();
      if (world.rank() == 0) {
        std::this_thread::sleep_for(1500ms);  // threads that end
        *now = lockstep::test::ProcessStateOf().threads;
      }
      meet.arrive_and_wait();
    };
    auto all = world.Group({.name = "all", .device = device});
    const auto tp = world.Group(MeshOf(world), {"tp"}, {.device = device});
    threads(&with_two);
    all.reset();
    const auto dp = world.Group(MeshOf(world), {"dp"}, {.device = device});
    threads(&with_others);
    all = world.Group({.name = "all", .device = device});  // again
    for (const auto& g : {all, dp}) {
      const Tensor x = Ones(*g);
      g->AllReduce(x)->Synchronize();
      EXPECT_THAT(x.ToVector<float>(), Each(static_cast<float>(g->size())));
    }
    meet.arrive_and_wait();
    // All of them end with the first failure.
    if (world.rank() == 3) tp->Abort("the loss is not finite");
    for (const auto& g : {tp, dp, all}) {
      EXPECT_THAT(MessageOf<CollectiveError>([&] {
                    while (true) g->AllReduce(Ones(*g))->Synchronize();
                  }),
                  HasSubstr("rank 3 gave up: the loss is not finite"));
    }
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(with_others, with_two);  // a simulated stream has one, too
}

}  // namespace
}  // namespace lockstep::dist
