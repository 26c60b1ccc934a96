// NCCL from 2.23.4 on hands each call of a nonblocking communicator to a thread: results, failures
// and aborts while such a launch is in progress, and what it costs the caller.
#include <gmock/gmock-matchers.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "core/cuda/device.h"
#include "cudasim/hang.h"
#include "cudasim/settings.h"
#include "dist/groups/nccl_comm.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/gpu_test.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using std::chrono::duration;
using std::chrono::steady_clock;
using testing::Each;
using testing::HasSubstr;

// Launches that take up to a time, or fail, during its lifetime.
class Launches {
 public:
  explicit Launches(int us, ncclResult_t result = ncclSuccess) { Set(us, result); }
  ~Launches() { Set(0, ncclSuccess); }
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

 private:
  static void Set(int us, ncclResult_t result) {
    cudasim::runtime::GetSettings().nccl_launch_us = us;
    cudasim::runtime::GetSettings().nccl_launch_result = result;
  }
};

// A communicator per GPU, made by a thread per rank.
std::vector<std::unique_ptr<NcclComm> > Connect(int size) {
  const ncclUniqueId id = NcclComm::NewId();
  std::vector<std::future<std::unique_ptr<NcclComm> > > ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&id, rank, size] {
      return std::make_unique<NcclComm>(id, rank, size, Device{DeviceType::kCuda, rank},
                                        std::chrono::seconds(60), nullptr);
    }));
  }
  std::vector<std::unique_ptr<NcclComm> > comms;
  for (auto& rank : ranks) comms.push_back(rank.get());
  return comms;
}

class NcclLaunchTest : public test::SimulatedGpuTest, public testing::WithParamInterface<int> {};
using NcclLaunchesTest = test::SimulatedGpuTest;

// Microseconds; before 2.23.4 there is no thread.
INSTANTIATE_TEST_SUITE_P(UpTo, NcclLaunchTest, testing::Values(-1, 0, 1000));

// Two groups' launches come in any order; each group's own, and those of its caller's streams, do
// not.
TEST_P(NcclLaunchTest, ChainsOfTwoGroupsHaveTheirValues) {
  SKIP_WITHOUT_GPUS(2);
  const Launches launches(GetParam());
  RunOnGpus(2, [](ProcessGroup& g) {
    const auto other = g.Duplicate("other");
    const Tensor a = Ones(g), b = Ones(g);
    for (int i = 0; i < 20; ++i) {
      const auto first = g.AllReduce(a);
      const auto second = other->AllReduce(b, ReduceOp::kMax);
      first->Wait();
      second->Wait();
      const auto third = other->AllReduce(a, ReduceOp::kMax);
      const auto fourth = g.AllReduce(b);
      third->Wait();
      fourth->Wait();
    }
    EXPECT_THAT(a.ToVector<float>(), Each(1 << 20));
    EXPECT_THAT(b.ToVector<float>(), Each(1 << 20));
  });
}

TEST_P(NcclLaunchTest, AFailedLaunchSaysWhy) {
  SKIP_WITHOUT_GPUS(2);
  if (GetParam() < 0) GTEST_SKIP() << "a call that launches at once has no later result";
  const auto comms = Connect(2);
  const Tensor x = Tensor::Full({100}, 1, DType::kF32, {DeviceType::kCuda, 0});
  {
    const Launches launches(GetParam(), ncclSystemError);
    EXPECT_THAT(MessageOf<Error>(
                    [&] { comms[0]->AllReduce(x, ReduceOp::kSum, CurrentStream(x.device())); }),
                AllOf(HasSubstr("ncclAllReduce"), HasSubstr("system error"),
                      HasSubstr("the launch was made to fail")));
  }
  for (const auto& comm : comms) comm->Abort();
}

TEST_F(NcclLaunchesTest, AnAbortEndsACallWhoseLaunchNeverComes) {
  SKIP_WITHOUT_GPUS(2);
  const auto comms = Connect(2);
  const Tensor x = Tensor::Full({100}, 1, DType::kF32, {DeviceType::kCuda, 0});
  std::future<std::string> message;
  {
    const cudasim::runtime::Hang hang("ncclGroupEnd");
    message = std::async(std::launch::async, [&] {
      return MessageOf<Error>(
          [&] { comms[0]->AllReduce(x, ReduceOp::kSum, CurrentStream(x.device())); });
    });
    while (hang.calls() == 0) std::this_thread::yield();
    const auto start = steady_clock::now();
    comms[0]->Abort();
    EXPECT_EQ(message.wait_for(std::chrono::seconds(5)), std::future_status::ready);
    EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(5));
  }
  EXPECT_THAT(message.get(), HasSubstr("aborted"));
  comms[1]->Abort();
}

// The least of many, as other programs run too.
template <class F>
void KeepLeast(double* least, const F& call) {
  for (int i = 0; i < 100; ++i) {
    const auto start = steady_clock::now();
    call();
    *least = std::min(*least, duration<double, std::micro>(steady_clock::now() - start).count());
  }
}

TEST_F(NcclLaunchesTest, ACallTakesLittleMoreThanItsThread) {
  SKIP_WITHOUT_GPUS(1);
  const auto comms = Connect(1);
  const Tensor x = Tensor::Full({1}, 1, DType::kF32, {DeviceType::kCuda, 0});
  const auto call = [&] { comms[0]->AllReduce(x, ReduceOp::kSum, CurrentStream(x.device())); };
  double thread = 1e9, with_thread = 1e9, without = 1e9;
  for (int round = 0; round < 50; ++round) {
    KeepLeast(&thread, [] { std::thread([] {}).join(); });
    KeepLeast(&with_thread, call);
    {
      const Launches at_once(-1);
      KeepLeast(&without, call);
    }
    if (round >= 4 && with_thread < without + thread + 20) break;
  }
  std::printf("a call takes %.1f us, %.1f without NCCL's thread; a thread %.1f\n", with_thread,
              without, thread);
  EXPECT_LT(with_thread, without + thread + 20);
}

}  // namespace
}  // namespace lockstep::dist
