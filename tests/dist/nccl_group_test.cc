// Groups over NCCL: in a simulated build on simulated GPUs, ranks as threads of the test.
#include "dist/nccl_group.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "core/cuda/device.h"
#include "core/cuda/handles.h"
#include "dist/in_process_group.h"
#include "dist/in_process_store.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

using Body = std::function<void(ProcessGroup&)>;

// What each rank throws, "" for nothing; or nullopt where there are too few GPUs.
std::optional<std::vector<std::string>> ErrorsOf(int size, const Body& body,
                                                 const GroupOptions& options = {}) {
  if (cuda::DeviceCount() < size) return std::nullopt;
  const auto store = MakeInProcessStore();
  GroupOptions control_options = options;
  control_options.name = options.name + "/control";
  auto controls = MakeInProcessGroups(size, control_options);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < controls.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        const Device device{DeviceType::kCuda, static_cast<int>(r)};
        cuda::SetDevice(device);
        const cuda::OwnedStream stream(device);
        const StreamGuard guard(stream);
        const auto group = MakeNcclGroup(std::move(controls[r]), *store, device, options);
        body(*group);
      } catch (const std::exception& e) {
        errors[r] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

#define RUN_OR_SKIP(size, ...)                     \
  const auto errors = ErrorsOf(size, __VA_ARGS__); \
  if (!errors) GTEST_SKIP() << "this needs " << (size) << " GPUs, simulated or real"

float Value(int rank, int64_t i) { return static_cast<float>((rank + 1) * 3 + i % 1013); }

Tensor Values(const ProcessGroup& g, int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) v[static_cast<size_t>(i)] = Value(g.rank(), i);
  return Tensor::FromVector(v, {n}, g.device());
}

Tensor Ones(const ProcessGroup& g, int64_t n) {
  return Tensor::Full({n}, 1, DType::kF32, g.device());
}

class NcclGroupTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, NcclGroupTest, testing::Values(1, 2, 4));

TEST_P(NcclGroupTest, EveryCollective) {
  RUN_OR_SKIP(GetParam(), [](ProcessGroup& g) {
    const int size = g.size(), rank = g.rank();
    for (const int64_t n : {0, 1, 7, 50'001}) {
      const Tensor all = Values(g, n), highest = Values(g, n), root = Values(g, n);
      const Tensor gathered = Tensor::Zeros({n * size}, DType::kF32, g.device());
      const Tensor scattered = Tensor::Zeros({n}, DType::kF32, g.device());
      const Tensor swapped = Tensor::Zeros({n * size}, DType::kF32, g.device());
      const Tensor many = Values(g, n * size);
      g.AllReduce(all);
      g.AllReduce(highest, ReduceOp::kMax);
      g.AllGather(Values(g, n), gathered);
      g.ReduceScatter(many, scattered);
      g.Broadcast(root, size - 1);
      // In the order of the group, so that this one's wait is enough.
      g.AllToAll(many, swapped)->Wait();
      const auto sum = [&](int64_t i) {
        float total = 0;
        for (int r = 0; r < size; ++r) total += Value(r, i);
        return total;
      };
      const auto a = all.ToVector<float>(), h = highest.ToVector<float>(),
                 b = root.ToVector<float>(), s = scattered.ToVector<float>(),
                 y = gathered.ToVector<float>(), x = swapped.ToVector<float>();
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(a[at], sum(i));
        ASSERT_EQ(h[at], Value(size - 1, i));
        ASSERT_EQ(b[at], Value(size - 1, i));
        ASSERT_EQ(s[at], sum(rank * n + i));
        for (int r = 0; r < size; ++r) {
          ASSERT_EQ(y[static_cast<size_t>(r * n + i)], Value(r, i));
          ASSERT_EQ(x[static_cast<size_t>(r * n + i)], Value(r, rank * n + i));
        }
      }
    }
    g.Barrier()->Synchronize();
    g.CheckInStep();
  });
  EXPECT_THAT(*errors, Each(""));
}

TEST(NcclGroupsTest, SendsReceivesAndUnequalParts) {
  RUN_OR_SKIP(2, [](ProcessGroup& g) {
    using enum Transfer::Direction;
    const int other = 1 - g.rank();
    const Tensor out = Values(g, 70'000), in = Ones(g, 70'000);
    g.Exchange({{kSend, out, other}, {kReceive, in, other}})->Wait();
    EXPECT_EQ(in.ToVector<float>()[12], Value(other, 12));
    const std::vector<int64_t> give = {1, 2}, take = g.rank() == 0 ? std::vector<int64_t>{1, 1}
                                                                   : std::vector<int64_t>{2, 2};
    const Tensor parts = Tensor::Zeros({take[0] + take[1]}, DType::kF32, g.device());
    g.AllToAll(Values(g, 3), parts, give, take)->Wait();
    const std::vector<float> expected =
        g.rank() == 0 ? std::vector<float>{Value(0, 0), Value(1, 0)}
                      : std::vector<float>{Value(0, 1), Value(0, 2), Value(1, 1), Value(1, 2)};
    EXPECT_EQ(parts.ToVector<float>(), expected);
  });
  EXPECT_THAT(*errors, Each(""));
}

// Streams are ordered by the group alone: nobody else synchronises.
TEST(NcclGroupsTest, IsOrderedWithTheCallersStream) {
  RUN_OR_SKIP(2, [](ProcessGroup& g) {
    const Tensor x = Tensor::Zeros({100'000}, DType::kF32, g.device());
    for (int i = 1; i <= 10; ++i) {
      x.Fill(i);
      const WorkPtr work = g.AllReduce(x);
      work->Wait();
      const Tensor copy = x.Clone();
      EXPECT_THAT(copy.Slice(0, 0, 5).ToVector<float>(), Each(2.0f * static_cast<float>(i)));
      ASSERT_TRUE(work->Done());
      ASSERT_TRUE(work->span().has_value());
      EXPECT_GE(work->span()->end, work->span()->begin);
    }
  });
  EXPECT_THAT(*errors, Each(""));
}

TEST(NcclGroupsTest, SpansLieOnTheHostsClock) {
  RUN_OR_SKIP(2, [](ProcessGroup& g) {
    g.CheckInStep();
    const auto before = Work::Clock::now();
    const WorkPtr work = g.AllReduce(Ones(g, 1000));
    work->Synchronize();
    const auto after = Work::Clock::now();
    // Events of the device and the host's clock differ by what it takes to record one.
    const auto slack = std::chrono::milliseconds(20);
    EXPECT_GE(work->span()->begin, before - slack);
    EXPECT_LE(work->span()->end, after + slack);
  });
  EXPECT_THAT(*errors, Each(""));
}

TEST(NcclGroupsTest, CanBeCaptured) {
  RUN_OR_SKIP(2, [](ProcessGroup& g) {
    const Tensor x = Ones(g, 1000);
    g.AllReduce(x)->Wait();  // whatever NCCL sets up at first
    const Stream stream = CurrentStream(g.device());
    Synchronize(stream);
    const cuda::Graph graph = cuda::Graph::Capture(stream, [&] { g.AllReduce(x)->Wait(); });
    for (int i = 0; i < 3; ++i) graph.Launch(stream);
    g.CheckInStep();
    EXPECT_THAT(x.ToVector<float>(), Each(16.0f));
    Synchronize(stream);
  });
  EXPECT_THAT(*errors, Each(""));
}

TEST(NcclGroupsTest, Duplicates) {
  RUN_OR_SKIP(2, [](ProcessGroup& g) {
    const auto other = g.Duplicate("other");
    const Tensor x = Ones(g, 10), y = Ones(g, 10);
    g.AllReduce(x)->Wait();
    other->AllReduce(y)->Wait();
    EXPECT_THAT(x.ToVector<float>(), Each(2.0f));
    EXPECT_THAT(y.ToVector<float>(), Each(2.0f));
  });
  EXPECT_THAT(*errors, Each(""));
}

TEST(NcclGroupsTest, RefusesWhatNcclCannotDo) {
  RUN_OR_SKIP(2, [](ProcessGroup& g) {
    EXPECT_THAT(MessageOf([&] { g.AllReduce(Tensor::Zeros({2}, DType::kU16, g.device())); }),
                HasSubstr("NCCL cannot reduce u16; convert it to i32"));
    EXPECT_THAT(MessageOf([&] { g.AllReduce(Tensor::Zeros({2}, DType::kF32)); }),
                HasSubstr(StrCat("works on ", g.device())));
    // It moves everything, though.
    const Tensor x = Tensor::Full({3}, g.rank() + 1, DType::kU16, g.device());
    g.Broadcast(x, 1)->Wait();
    EXPECT_THAT(x.ToVector<uint16_t>(), Each(2));
  });
  EXPECT_THAT(*errors, Each(""));
  EXPECT_THAT(
      MessageOf([] { MakeNcclGroup(MakeInProcessGroups(1)[0], *MakeInProcessStore(), kCpu, {}); }),
      HasSubstr("not on cpu"));
}

// ---- What goes wrong. ----

TEST(NcclFailureTest, FullCheckComparesEachCallBeforeItStarts) {
  GroupOptions options;
  options.check_every_call = true;
  std::atomic<int> thrown{0};
  RUN_OR_SKIP(
      2,
      [&](ProcessGroup& g) {
        const Tensor x = Ones(g, 100);
        g.AllReduce(x)->Synchronize();
        try {
          g.AllReduce(g.rank() == 0 ? x : x.Slice(0, 0, 50));
          FAIL() << "rank " << g.rank() << " did not notice";
        } catch (const CollectiveError& e) {
          ++thrown;
          EXPECT_EQ(e.cause(), CollectiveError::Cause::kMismatch);
          EXPECT_EQ(e.sequence(), 2);
          EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 0 all_reduce #2 (f32[100], sum)"),
                                      HasSubstr("rank 1 all_reduce #2 (f32[50], sum)")));
        }
        EXPECT_THAT(x.ToVector<float>(), Each(2.0f));
        EXPECT_THROW(g.Barrier(), CollectiveError);
      },
      options);
  EXPECT_THAT(*errors, Each(""));
  EXPECT_EQ(thrown, 2);
}

TEST(NcclFailureTest, FullCheckComparesPartsAndTransfers) {
  GroupOptions options;
  options.check_every_call = true;
  for (const bool parts : {true, false}) {
    RUN_OR_SKIP(
        2,
        [&](ProcessGroup& g) {
          if (parts) {
            const std::vector<int64_t> give = {2, 2};
            const std::vector<int64_t> take = {g.rank() == 1 ? 3 : 2, 2};
            g.AllToAll(Ones(g, 4), Ones(g, g.rank() == 1 ? 5 : 4), give, take)->Synchronize();
          } else if (g.rank() == 0) {
            g.Send(Ones(g, 10), 1)->Synchronize();
          } else {
            g.Receive(Ones(g, 9), 0)->Synchronize();
          }
        },
        options);
    EXPECT_THAT(*errors, Each(HasSubstr(parts ? "rank 0 sends rank 1 2 elements, which takes 3"
                                              : "rank 0 sends rank 1 10 elements, which takes 9")));
  }
}

// Without it, calls of which NCCL makes nothing wrong differ, and the comparison before the update
// finds the first of them.
TEST(NcclFailureTest, CheckInStepFindsTheFirstDifference) {
  std::atomic<int> thrown{0};
  RUN_OR_SKIP(2, [&](ProcessGroup& g) {
    const Tensor x = Ones(g, 100);
    g.AllReduce(x)->Wait();
    g.CheckInStep();
    // Nothing is sent for either.
    if (g.rank() == 0) {
      g.AllReduce(x.Slice(0, 0, 0));
    } else {
      g.AllGather(x.Slice(0, 0, 0), x.Slice(0, 0, 0));
    }
    g.AllReduce(x)->Wait();
    try {
      g.CheckInStep();
    } catch (const CollectiveError& e) {
      ++thrown;
      EXPECT_THAT(e.what(), AllOf(HasSubstr("rank 0 all_reduce #3 (f32[0], sum)"),
                                  HasSubstr("rank 1 all_gather #3 (f32[0])")));
    }
  });
  EXPECT_THAT(*errors, Each(""));
  EXPECT_EQ(thrown, 2);
}

TEST(NcclFailureTest, ARankThatCallsLessIsNamedInTime) {
  GroupOptions options;
  options.timeout = std::chrono::seconds(3);
  std::atomic<bool> ended{false};
  RUN_OR_SKIP(
      2,
      [&](ProcessGroup& g) {
        const Tensor x = Ones(g, 100);
        g.AllReduce(x)->Synchronize();
        if (g.rank() == 1) {
          while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          g.AllReduce(x)->Synchronize();
        }
        try {
          g.AllReduce(x)->Synchronize();
        } catch (const CollectiveError& e) {
          ended = true;
          EXPECT_EQ(e.cause(), CollectiveError::Cause::kTimeout);
          EXPECT_THAT(e.culprits(), ElementsAre(1));
          throw;
        }
      },
      options);
  EXPECT_THAT(*errors, Each(AllOf(HasSubstr("did not end within 3 s; rank 1 did not take part, its "
                                            "last call was all_reduce #1 (f32[100], sum)"))));
}

TEST(NcclFailureTest, ARankThatGivesUpEndsTheOthers) {
  RUN_OR_SKIP(2, [&](ProcessGroup& g) {
    const Tensor x = Ones(g, 100);
    g.AllReduce(x)->Wait();
    if (g.rank() == 1) {
      g.Abort("the loss is not finite");
      g.Barrier();
    } else {
      g.AllReduce(x)->Synchronize();
    }
  });
  EXPECT_THAT(*errors, Each(HasSubstr("rank 1 gave up: the loss is not finite")));
}

TEST(NcclFailureTest, LeavingWhileOthersGoOnIsAnErrorThere) {
  RUN_OR_SKIP(2, [&](ProcessGroup& g) {
    if (g.rank() == 0) g.AllReduce(Ones(g, 10))->Synchronize();
  });
  EXPECT_THAT((*errors)[0], HasSubstr("rank 1 has left the group"));
  EXPECT_EQ((*errors)[1], "");
}

}  // namespace
}  // namespace lockstep::dist
