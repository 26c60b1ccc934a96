// Groups over NCCL on GPUs, real or simulated, ranks as threads of the test.
#include "dist/groups/nccl_group.h"

#include <gmock/gmock-matchers.h>

#include <chrono>
#include <thread>

#include "core/cuda/handles.h"
#include "dist/mesh.h"
#include "tests/dist/gpu_ranks.h"
#include "tests/dist/in_process.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using lockstep::test::MessageOf;
using testing::Each;
using testing::HasSubstr;

float Value(int rank, int64_t i) { return static_cast<float>((rank + 1) * 3 + i % 1013); }

Tensor Values(const ProcessGroup& g, int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) v[static_cast<size_t>(i)] = Value(g.rank(), i);
  return Tensor::FromVector(v, {n}, g.device());
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
      const Tensor whole = Values(g, n * size), in_place = whole.Slice(0, rank * n, (rank + 1) * n);
      g.ReduceScatter(whole, in_place);
      g.Broadcast(root, size - 1);
      // Operations run in order, so waiting for this one is enough.
      g.AllToAll(many, swapped)->Wait();
      const auto sum = [&](int64_t i) {
        float total = 0;
        for (int r = 0; r < size; ++r) total += Value(r, i);
        return total;
      };
      const auto a = all.ToVector<float>(), h = highest.ToVector<float>(),
                 b = root.ToVector<float>(), s = scattered.ToVector<float>(),
                 p = in_place.ToVector<float>(), y = gathered.ToVector<float>(),
                 x = swapped.ToVector<float>();
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(a[at], sum(i));
        ASSERT_EQ(h[at], Value(size - 1, i));
        ASSERT_EQ(b[at], Value(size - 1, i));
        ASSERT_EQ(s[at], sum(rank * n + i));
        ASSERT_EQ(p[at], s[at]);
        for (int r = 0; r < size; ++r) {
          ASSERT_EQ(y[static_cast<size_t>(r * n + i)], Value(r, i));
          ASSERT_EQ(x[static_cast<size_t>(r * n + i)], Value(r, rank * n + i));
        }
      }
    }
    g.Barrier()->Synchronize();
    g.CheckInStep();
  });
  EXPECT_THAT(errors, Each(""));
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
  EXPECT_THAT(errors, Each(""));
}

// Only the group orders streams; nothing else synchronises.
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
  EXPECT_THAT(errors, Each(""));
}

TEST(NcclGroupsTest, SpansLieOnTheHostsClock) {
  RUN_OR_SKIP(2, [](ProcessGroup& g) {
    g.CheckInStep();
    const auto before = Work::Clock::now();
    const WorkPtr work = g.AllReduce(Ones(g, 1000));
    work->Synchronize();
    const auto after = Work::Clock::now();
    // Device events and the host's clock differ by the time it takes to record an event.
    const auto slack = std::chrono::milliseconds(20);
    EXPECT_GE(work->span()->begin, before - slack);
    EXPECT_LE(work->span()->end, after + slack);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(NcclGroupsTest, CanBeCaptured) {
  RUN_OR_SKIP(2, [](ProcessGroup& g) {
    const Tensor x = Ones(g, 1000);
    g.AllReduce(x)->Wait();  // NCCL's setup, before the capture
    const Stream stream = CurrentStream(g.device());
    Synchronize(stream);
    const cuda::Graph graph = cuda::Graph::Capture(stream, [&] { g.AllReduce(x)->Wait(); });
    for (int i = 0; i < 3; ++i) graph.Launch(stream);
    g.CheckInStep();
    EXPECT_THAT(x.ToVector<float>(), Each(16.0f));
    Synchronize(stream);
  });
  EXPECT_THAT(errors, Each(""));
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
  EXPECT_THAT(errors, Each(""));
}

// By ncclCommSplit; with full checks too.
TEST(NcclGroupsTest, SplitAlongTheAxesOfAMesh) {
  for (const bool check : {false, true}) {
    RUN_OR_SKIP(4,
                [](ProcessGroup& g) {
                  const Mesh mesh({.dp = 2, .tp = 2}, g.rank(), g.size());
                  std::vector<std::shared_ptr<ProcessGroup>> groups;
                  for (const char* const axis : {"dp", "tp"}) {
                    groups.push_back(g.Split(mesh.GroupName({axis}), mesh.RanksAlong({axis})));
                  }
                  for (const auto& group : groups) {
                    EXPECT_EQ(group->size(), 2);
                    const Tensor x = Ones(*group, 1000), root = Values(g, 10),
                                 in = Ones(*group, 10);
                    x.Fill(1 << g.rank());
                    group->AllReduce(x)->Wait();
                    float sum = 0;
                    for (const int r : group->members()) sum += static_cast<float>(1 << r);
                    EXPECT_THAT(x.ToVector<float>(), Each(sum));
                    group->Broadcast(root, 1)->Wait();
                    EXPECT_EQ(root.ToVector<float>()[0], Value(group->members()[1], 0));
                    using enum Transfer::Direction;
                    const int other = 1 - group->rank();
                    group->Exchange({{kSend, Values(g, 10), other}, {kReceive, in, other}})->Wait();
                    EXPECT_EQ(in.ToVector<float>()[3],
                              Value(group->members()[static_cast<size_t>(other)], 3));
                    group->CheckInStep();
                  }
                },
                {.check_every_call = check});
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(NcclGroupsTest, RefusesWhatNcclCannotDo) {
  RUN_OR_SKIP(2, [](ProcessGroup& g) {
    EXPECT_THAT(MessageOf([&] { g.AllReduce(Tensor::Zeros({2}, DType::kU16, g.device())); }),
                HasSubstr("NCCL cannot reduce u16; convert it to i32"));
    EXPECT_THAT(MessageOf([&] { g.AllReduce(Tensor::Zeros({2}, DType::kF32)); }),
                HasSubstr(StrCat("works on ", g.device())));
    // It can move every dtype, though.
    const Tensor x = Tensor::Full({3}, g.rank() + 1, DType::kU16, g.device());
    g.Broadcast(x, 1)->Wait();
    EXPECT_THAT(x.ToVector<uint16_t>(), Each(2));
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(MessageOf([] { MakeNcclGroup(MakeLocalPlanes(1)[0], {}); }), HasSubstr("not on cpu"));
}

}  // namespace
}  // namespace lockstep::dist
