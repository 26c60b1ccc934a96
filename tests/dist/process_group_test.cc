// What every process group promises, whatever its transport.
#include "dist/process_group.h"

#include <gmock/gmock-matchers.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "core/philox.h"
#include "tests/dist/in_process.h"
#include "tests/dist/ranks.h"
#include "tests/message_of.h"
#include "tests/sanitized.h"

namespace lockstep::dist::test {
namespace {

using lockstep::test::MessageOf;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

struct Case {
  int size;
  GroupOptions options = {};
  // The groups are the two halves of a world, at the same time: its even and its odd ranks.
  bool halves = false;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.size << (c.options.check_every_call ? "Checked" : "") << (c.halves ? "Halves" : "");
}

// The ranks of the half that has `rank`.
std::vector<int> HalfWith(int rank, int size) {
  std::vector<int> half;
  for (int r = rank % 2; r < size; r += 2) half.push_back(r);
  return half;
}

class ProcessGroupTest : public testing::TestWithParam<Case> {
 protected:
  void Run(const std::function<void(ProcessGroup&)>& body) const {
    const auto& [size, options, halves] = GetParam();
    if (!halves) return RunRanks(size, body, options);
    RunRanks(
        2 * size,
        [&](ProcessGroup& world) {
          const auto half = world.Split("half", HalfWith(world.rank(), world.size()));
          body(*half);
        },
        options);
  }
};

// Empty, one, odd, at the limit of the path for small tensors (16 KiB), and more than a chunk (4
// MiB per rank).
constexpr int64_t kMost = lockstep::test::kSanitized ? 2'100'003 : 5'000'003;
const int64_t kCounts[] = {0, 1, 7, 4096, 4097, 50'001, kMost};

// A value whose sum over 8 ranks is exact in f32.
float Value(int rank, int64_t i) { return static_cast<float>((rank + 1) * 3 + i % 1013); }

Tensor Values(int rank, int64_t n) {
  Tensor t = Tensor::Empty({n}, DType::kF32);
  float* const x = t.data<float>();
  for (int64_t i = 0; i < n; ++i) x[i] = Value(rank, i);
  return t;
}

// Describes the first element of t that is not expected(i); "" if there is none.
template <class F>
std::string FirstWrong(const Tensor& t, const F& expected) {
  const float* const x = t.data<float>();
  const int64_t n = t.numel();
  for (int64_t i = 0; i < n; ++i) {
    const float e = expected(i);
    if (!(x[i] == e)) return StrCat("element ", i, " of ", n, " is ", x[i], " instead of ", e);
  }
  return "";
}

TEST_P(ProcessGroupTest, AllReduces) {
  Run([](ProcessGroup& g) {
    for (const int64_t n : kCounts) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        // How tensors are cut does not depend on the reduction.
        if (lockstep::test::kSanitized && n == kMost && op != ReduceOp::kSum) continue;
        const Tensor x = Values(g.rank(), n);
        g.AllReduce(x, op)->Wait();
        const auto expected = [&](int64_t i) {
          if (op != ReduceOp::kSum) return Value(op == ReduceOp::kMax ? g.size() - 1 : 0, i);
          float sum = 0;
          for (int r = 0; r < g.size(); ++r) sum += Value(r, i);
          return sum;
        };
        ASSERT_EQ(FirstWrong(x, expected), "") << Name(op);
      }
    }
  });
}

TEST_P(ProcessGroupTest, ReduceScattersAlsoInPlace) {
  Run([](ProcessGroup& g) {
    for (const int64_t n : {0, 1, 7, 50'001, 1'200'000}) {
      const Tensor x = Values(g.rank(), n * g.size());
      const std::vector<float> before = x.ToVector<float>();
      const Tensor y = Tensor::Full({n}, -1, DType::kF32);
      g.ReduceScatter(x, y)->Wait();
      const auto expected = [&](int64_t i) {
        float sum = 0;
        for (int r = 0; r < g.size(); ++r) sum += Value(r, g.rank() * n + i);
        return sum;
      };
      ASSERT_EQ(FirstWrong(y, expected), "");
      EXPECT_EQ(x.ToVector<float>(), before);
      const Tensor part = x.Slice(0, g.rank() * n, (g.rank() + 1) * n);
      g.ReduceScatter(x, part)->Wait();
      ASSERT_EQ(FirstWrong(part, expected), "");
    }
  });
}

TEST_P(ProcessGroupTest, AllGathersAlsoInPlace) {
  Run([](ProcessGroup& g) {
    for (const int64_t n : {0, 1, 7, 50'001}) {
      const Tensor y = Tensor::Full({n * g.size()}, -1, DType::kF32);
      const Tensor part = y.Slice(0, g.rank() * n, (g.rank() + 1) * n);
      for (const bool in_place : {false, true}) {
        y.Fill(-1);
        part.CopyFrom(Values(g.rank(), n));
        g.AllGather(in_place ? part : Values(g.rank(), n), y)->Wait();
        const auto expected = [&](int64_t i) { return Value(static_cast<int>(i / n), i % n); };
        ASSERT_EQ(FirstWrong(y, expected), "");
      }
    }
  });
}

TEST_P(ProcessGroupTest, BroadcastsFromEveryRoot) {
  Run([](ProcessGroup& g) {
    for (const int64_t n : {0, 1, 7, 50'001}) {
      for (int root = 0; root < g.size(); ++root) {
        const Tensor x = Values(g.rank(), n);
        g.Broadcast(x, root)->Wait();
        ASSERT_EQ(FirstWrong(x, [&](int64_t i) { return Value(root, i); }), "");
      }
    }
  });
}

TEST_P(ProcessGroupTest, ExchangesPartsOfAllSizes) {
  Run([](ProcessGroup& g) {
    // r sends (r + 2 p) elements of value 100 r + p to p; then 50,000 each.
    for (const bool even : {false, true}) {
      std::vector<int64_t> give, take;
      std::vector<float> in, expected;
      for (int p = 0; p < g.size(); ++p) {
        give.push_back(even ? 50'000 : g.rank() + 2 * p);
        take.push_back(even ? 50'000 : p + 2 * g.rank());
        in.insert(in.end(), static_cast<size_t>(give.back()), 100.0f * g.rank() + p);
        expected.insert(expected.end(), static_cast<size_t>(take.back()), 100.0f * p + g.rank());
      }
      const Tensor x = Tensor::FromVector(in, {static_cast<int64_t>(in.size())});
      const Tensor y = Tensor::Full({static_cast<int64_t>(expected.size())}, -1, DType::kF32);
      if (even) {
        g.AllToAll(x, y)->Wait();
      } else {
        g.AllToAll(x, y, give, take)->Wait();
      }
      EXPECT_EQ(y.ToVector<float>(), expected);
    }
  });
}

TEST_P(ProcessGroupTest, SendsAndReceives) {
  if (GetParam().size == 1) GTEST_SKIP() << "there is no other rank";
  Run([](ProcessGroup& g) {
    // Around a ring, both ways at once, two tensors each way.
    const int next = (g.rank() + 1) % g.size(), last = (g.rank() + g.size() - 1) % g.size();
    const Tensor up = Values(g.rank(), 70'000), down = Values(g.rank() + 50, 3);
    const Tensor from_last = Tensor::Zeros({70'000}, DType::kF32);
    const Tensor from_next = Tensor::Zeros({3}, DType::kF32);
    using enum Transfer::Direction;
    g.Exchange({{kSend, up, next},
                {kReceive, from_last, last},
                {kSend, down, last},
                {kReceive, from_next, next}})
        ->Wait();
    EXPECT_EQ(from_last.ToVector<float>(), Values(last, 70'000).ToVector<float>());
    EXPECT_EQ(from_next.ToVector<float>(), Values(next + 50, 3).ToVector<float>());
    // Only between two ranks, while the others continue to the barrier.
    if (g.rank() == 0) {
      g.Send(up, 1);
    } else if (g.rank() == 1) {
      const Tensor x = Tensor::Zeros({70'000}, DType::kF32);
      g.Receive(x, 0)->Wait();
      EXPECT_EQ(x.ToVector<float>(), Values(0, 70'000).ToVector<float>());
    }
    g.Barrier()->Wait();
  });
}

TEST_P(ProcessGroupTest, BarriersHoldEveryoneBack) {
  std::atomic<int> arrived{0};
  Run([&](ProcessGroup& g) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      g.Barrier()->Wait();
      EXPECT_GE(arrived, round * g.size());
    }
  });
}

TEST_P(ProcessGroupTest, RunsManyOperationsInOrder) {
  Run([](ProcessGroup& g) {
    // Each uses the result of the previous one, without waiting in between.
    const Tensor x = Tensor::Full({10'000}, 1, DType::kF64);
    std::vector<WorkPtr> work;
    for (int i = 0; i < 20; ++i) work.push_back(g.AllReduce(x));
    work.back()->Wait();
    for (const WorkPtr& w : work) EXPECT_TRUE(w->Done());
    EXPECT_THAT(x.ToVector<double>(), Each(std::pow(g.size(), 20)));
    for (size_t i = 1; i < work.size(); ++i) {
      EXPECT_EQ(work[i]->operation().sequence, work[i - 1]->operation().sequence + 1);
      EXPECT_GE(work[i]->span()->begin, work[i - 1]->span()->end);
      EXPECT_GE(work[i]->span()->end, work[i]->span()->begin);
    }
  });
}

TEST_P(ProcessGroupTest, KeepsTensorsAliveAndCountsWrites) {
  Run([](ProcessGroup& g) {
    Tensor x = Values(g.rank(), 100'000);
    const uint64_t version = x.storage().version();
    WorkPtr work = g.AllReduce(x);
    EXPECT_GT(x.storage().version(), version);
    x = Tensor();
    work.reset();
    g.CheckInStep();
  });
}

// An element's sum depends neither on its position nor on its neighbours.
TEST_P(ProcessGroupTest, SumsInTheOrderOfTheRanks) {
  Run([](ProcessGroup& g) {
    const auto term = [](int rank, int64_t i) {
      return std::ldexp(
          ToUniform(Philox(7).At(static_cast<uint64_t>(rank), static_cast<uint64_t>(i))) - 0.5f,
          static_cast<int>(i % 40) - 20 + (rank * 7) % 13);
    };
    const int64_t n = 100'003;
    const Tensor x = Tensor::Empty({n}, DType::kF32), parts = Tensor::Empty({n}, DType::kF32);
    for (int64_t i = 0; i < n; ++i) x.data<float>()[i] = term(g.rank(), i);
    parts.CopyFrom(x);
    g.AllReduce(x);
    for (int64_t begin = 0, size = 1; begin < n; begin += size, size = size * 3 + 1) {
      g.AllReduce(parts.Slice(0, begin, std::min(begin + size, n)));
    }
    g.CheckInStep();
    const auto expected = [&](int64_t i) {
      float sum = term(0, i);
      for (int r = 1; r < g.size(); ++r) sum += term(r, i);
      return sum;
    };
    ASSERT_EQ(FirstWrong(x, expected), "");
    ASSERT_EQ(FirstWrong(parts, expected), "");
  });
}

template <class T>
void ExpectReduced(ProcessGroup& g, ReduceOp op, T even, T odd, T expected) {
  const Tensor x = Tensor::Empty({3}, DTypeOf<T>);
  std::fill_n(x.data<T>(), 3, g.rank() % 2 == 0 ? even : odd);
  g.AllReduce(x, op)->Wait();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(x.data<T>()[i], expected) << DTypeOf<T> << " " << Name(op);
}

TEST(ProcessGroupTypesTest, ReducesEveryType) {
  RunRanks(2, [](ProcessGroup& g) {
    ExpectReduced<double>(g, ReduceOp::kSum, 1, 1e-12, 1 + 1e-12);
    ExpectReduced<float>(g, ReduceOp::kSum, 1.5f, 2.25f, 3.75f);
    ExpectReduced<int64_t>(g, ReduceOp::kSum, int64_t{1} << 62, int64_t{1} << 62,
                           std::numeric_limits<int64_t>::min());
    ExpectReduced<int32_t>(g, ReduceOp::kSum, 2'000'000'000, 2'000'000'000, -294'967'296);
    ExpectReduced<int32_t>(g, ReduceOp::kMin, -3, 2, -3);
    ExpectReduced<uint16_t>(g, ReduceOp::kSum, 65'535, 2, 1);
    ExpectReduced<uint8_t>(g, ReduceOp::kMax, 200, 100, 200);
    ExpectReduced<BF16>(g, ReduceOp::kMax, BF16(-2.0f), BF16(3.0f), BF16(3.0f));
    ExpectReduced<F16>(g, ReduceOp::kSum, F16(0.5f), F16(0.25f), F16(0.75f));
  });
  // Rounded once: in bf16, in which 258 follows 256, 256 + 1 + 1 would stay 256 if each sum were
  // rounded.
  RunRanks(3, [](ProcessGroup& g) {
    const Tensor x = Tensor::Empty({1}, DType::kBF16);
    *x.data<BF16>() = BF16(g.rank() == 0 ? 256.0f : 1.0f);
    g.AllReduce(x)->Wait();
    EXPECT_EQ(*x.data<BF16>(), BF16(258.0f));
  });
}

TEST(ProcessGroupTypesTest, NanWins) {
  RunRanks(3, [](ProcessGroup& g) {
    for (int bad = 0; bad < 3; ++bad) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
        const Tensor x = Tensor::Full({2}, g.rank() == bad ? std::nan("") : g.rank(), DType::kF32);
        g.AllReduce(x, op)->Wait();
        EXPECT_TRUE(std::isnan(x.data<float>()[0])) << Name(op) << " with NaN of rank " << bad;
      }
    }
  });
}

TEST_P(ProcessGroupTest, DuplicatesHaveTheirOwnOrder) {
  Run([](ProcessGroup& g) {
    const auto other = g.Duplicate("other");
    EXPECT_EQ(other->name(), "other");
    EXPECT_EQ(other->rank(), g.rank());
    // Odd ranks use the two groups in the opposite order.
    const Tensor x = Values(g.rank(), 1000), y = Values(g.rank() + 5, 2000);
    WorkPtr a, b;
    if (g.rank() % 2 == 0) {
      a = g.AllReduce(x);
      b = other->AllReduce(y, ReduceOp::kMax);
    } else {
      b = other->AllReduce(y, ReduceOp::kMax);
      a = g.AllReduce(x);
    }
    a->Wait();
    b->Wait();
    EXPECT_EQ(y.data<float>()[3], Value(g.size() - 1 + 5, 3));
    const auto third = other->Duplicate("third");
    third->Barrier()->Wait();
  });
}

TEST(ProcessGroupSplit, PartsAreCountedFromZeroAndNameTheWorldsRanks) {
  RunRanks(5, [](ProcessGroup& g) {
    const std::vector<int> ranks = HalfWith(g.rank(), 5);
    const auto half = g.Split("half", ranks);
    EXPECT_EQ(half->size(), g.rank() % 2 == 0 ? 3 : 2);
    EXPECT_EQ(half->rank(), g.rank() / 2);
    EXPECT_EQ(half->world_rank(), g.rank());
    EXPECT_EQ(half->members(), ranks);
    // Ranks in the arguments are the group's: the last rank is the root.
    const Tensor x = Values(g.rank(), 10);
    half->Broadcast(x, half->size() - 1)->Wait();
    EXPECT_EQ(x.data<float>()[0], Value(ranks.back(), 0));
    // Parts of parts.
    const auto pair =
        half->Split("first two", half->rank() < 2 ? std::vector<int>{0, 1} : std::vector<int>{2});
    const std::vector<int> expected[] = {{0, 2}, {1, 3}, {4}};
    EXPECT_EQ(pair->members(), expected[g.rank() == 4 ? 2 : g.rank() % 2]);
    pair->Barrier()->Wait();
  });
}

TEST(ProcessGroupSplit, RefusesWhatCannotBe) {
  RunRanks(3, [](ProcessGroup& g) {
    for (const std::vector<int>& ranks :
         {std::vector<int>{}, {(g.rank() + 1) % 3}, {0, 1, 2, 3}, {2, 1, 0}, {0, 0, 1, 2}}) {
      EXPECT_THAT(MessageOf<ArgumentError>([&] { g.Split("part", ranks); }),
                  HasSubstr("must be some of its 3 ranks, ascending, with rank "));
    }
    // Rank 2 does not know that it is in the part.
    const std::vector<int> ranks = g.rank() == 2 ? std::vector<int>{2} : std::vector<int>{0, 1, 2};
    EXPECT_THAT(MessageOf<ArgumentError>([&] { g.Split("part", ranks); }),
                HasSubstr("ranks 0 and 1 name parts that some of their own ranks do not name"));
    g.Barrier()->Wait();
  });
}

TEST(GroupOptions, TheTimeoutIsChecked) {
  EXPECT_THAT(MessageOf([] { MakeInProcessGroups(1, {.name = "g", .timeout = 0ms}); }),
              HasSubstr("group 'g': the timeout must be positive, got 0 ms"));
}

TEST_P(ProcessGroupTest, RefusesInvalidArgumentsAtOnceAndRemainsUsable) {
  Run([](ProcessGroup& g) {
    const Tensor x = Tensor::Zeros({4}, DType::kF32);
    EXPECT_THAT(MessageOf([&] { g.AllReduce(Tensor()); }), HasSubstr("undefined"));
    EXPECT_THAT(MessageOf([&] { g.AllReduce(Tensor::Empty({2}, DType::kF32, kMeta)); }),
                AllOf(HasSubstr(StrCat("all_reduce in group '", g.name(), "'")),
                      HasSubstr("works on cpu")));
    EXPECT_THAT(MessageOf([&] {
                  g.AllReduce(Tensor::Zeros({2, 3}, DType::kF32).Transpose(0, 1));
                }),
                HasSubstr("not contiguous; pass Contiguous()"));
    EXPECT_THAT(MessageOf([&] { g.AllReduce(Tensor::Zeros({2}, DType::kBool)); }),
                HasSubstr("bool cannot be reduced"));
    Tensor leaf = Tensor::Zeros({2}, DType::kF32);
    leaf.SetRequiresGrad();
    EXPECT_THAT(MessageOf([&] { g.Broadcast(leaf, 0); }), HasSubstr("pass Detach()"));
    EXPECT_THAT(MessageOf([&] { g.Broadcast(x, g.size()); }),
                HasSubstr(StrCat("the root is rank ", g.size(), ", but there are ", g.size())));
    EXPECT_THAT(MessageOf([&] { g.AllGather(x, Tensor::Zeros({4 * g.size() + 1}, DType::kF32)); }),
                HasSubstr(StrCat(g.size(), " times the elements")));
    EXPECT_THAT(MessageOf([&] { g.ReduceScatter(x, Tensor::Zeros({4}, DType::kF64)); }),
                HasSubstr("f64[4] on cpu"));
    EXPECT_THAT(MessageOf([&] { g.AllToAll(x, Tensor::Zeros({5}, DType::kF32)); }),
                HasSubstr("pass counts"));
    EXPECT_THAT(MessageOf([&] { g.Send(x, g.rank()); }), HasSubstr("itself"));
    const Tensor y = Values(g.rank(), 5);
    g.AllReduce(y, ReduceOp::kMax)->Wait();
    EXPECT_EQ(y.data<float>()[4], Value(g.size() - 1, 4));
  });
}

const GroupOptions kChecked = {.check_every_call = true};

INSTANTIATE_TEST_SUITE_P(Groups, ProcessGroupTest,
                         testing::Values(Case{1}, Case{2}, Case{3}, Case{4}, Case{5},
                                         Case{2, kChecked}, Case{.size = 3, .halves = true}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace lockstep::dist::test
