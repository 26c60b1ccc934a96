#include "dist/data_parallel/reducer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <map>
#include <mutex>

#include "dist/groups/agreement.h"
#include "kernels/scale/scale.h"
#include "tests/dist/in_process.h"
#include "tests/dist/toy_steps.h"
#include "tests/message_of.h"

namespace lockstep::dist {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StrEq;

std::vector<float> StepGradients(int ranks, int64_t leaves, const ReducerOptions& options) {
  const auto run = [](int n, const auto& body) { RunInProcess(n, body); };
  return dist::StepGradients(run, ranks, leaves, options);
}

TEST(Reducer, GradientsAreThoseOfTheWholeBatch) {
  const std::vector<float> whole = WholeBatchGradients(12);
  for (const int ranks : {1, 2, 3, 4, 5, 6, 12}) {
    for (const auto& options : {ReducerOptions{}, Small()}) {
      EXPECT_LT(MaxDifference(StepGradients(ranks, 12, options), whole), 2e-7) << ranks;
    }
  }
}

// The promise of the ordered sum: bits do not depend on ranks, accumulation or buckets.
TEST(Reducer, OrderedSumsHaveTheSameBitsAtAnyNumberOfRanks) {
  for (const auto& [leaves, counts] :
       {std::pair(8, std::vector{1, 2, 3, 4, 8}),
        std::pair(12, std::vector{1, 2, 3, 4, 5, 6, 7, 12}), std::pair(3, std::vector{1, 2, 3}),
        std::pair(5, std::vector{1, 2, 3, 4, 5})}) {
    ReducerOptions options{.sum = GradientSum::kOrdered};
    const std::vector<float> one = StepGradients(1, leaves, options);
    EXPECT_LT(MaxDifference(one, WholeBatchGradients(leaves)), 2e-7);
    for (const int ranks : counts) {
      for (const int64_t cap : {1, 700, 3000, 1 << 20}) {
        options.bucket_bytes = cap;
        options.first_bucket_bytes = cap / 2 + 1;
        EXPECT_EQ(StepGradients(ranks, leaves, options), one)
            << leaves << " on " << ranks << " ranks, buckets of " << cap;
      }
    }
  }
}

TEST(Reducer, TheOrderedSumAddsTheMicroBatchesGradientsAsDesigned) {
  std::vector<std::vector<float>> leaves;
  for (int64_t m = 0; m < 12; ++m) {
    ToyModel model;
    ToyBackward(model, MakeToyBatch(m, kRows), 12 * kRows);
    leaves.push_back(GradientsOf(model));
  }
  for (const auto& [to, from] : FixedOrderAdds(12)) {
    for (size_t i = 0; i < leaves[to].size(); ++i) leaves[to][i] += leaves[from][i];
  }
  for (const int ranks : {1, 2, 3, 5, 7}) {
    EXPECT_EQ(StepGradients(ranks, 12, {.sum = GradientSum::kOrdered}), leaves[0]) << ranks;
  }
}

TEST(Reducer, TwoRanksInTheLibrarysOrderAreTheOrderedSumToo) {
  EXPECT_EQ(StepGradients(2, 2, Small()), StepGradients(1, 2, {.sum = GradientSum::kOrdered}));
}

TEST(Reducer, RefusesMoreRanksThanMicroBatches) {
  for (const GradientSum sum : {GradientSum::kFast, GradientSum::kOrdered}) {
    const std::string message = test::MessageOf([&] {
      RunInProcess(3, [&](ProcessGroup& group) {
        ToyModel toy;
        Reducer(&group, toy.Parameters(), {.sum = sum, .micro_batches = 2});
      });
    });
    EXPECT_THAT(message, HasSubstr("2 micro-batches cannot be distributed over 3 ranks"));
  }
}

// If a rank sends several terms, it may be in any of them.
TEST(Reducer, ANonFiniteGradientOfAnyMicroBatchIsTracedToItsRank) {
  for (int64_t bad = 0; bad < 12; ++bad) {
    RunInProcess(2, [&](ProcessGroup& group) {
      ToyModel model;
      Reducer reducer(&group, model.Parameters(),
                      Small({.sum = GradientSum::kOrdered, .micro_batches = 12}));
      const std::vector<int64_t>& mine = reducer.micro_order();
      for (const int64_t m : mine) {
        std::optional<Reducer::NoSync> no_sync;
        if (m != mine.back()) no_sync.emplace(reducer);
        ToyBatch batch = MakeToyBatch(m);
        if (m == bad) batch.x.data<float>()[3] = INFINITY;
        ToyBackward(model, batch, 1);
      }
      const bool is_mine = std::ranges::count(mine, bad) > 0;
      const int culprit = is_mine ? group.rank() : 1 - group.rank();
      EXPECT_THAT(reducer.LocateNonFinite(), testing::StartsWith(StrCat("rank ", culprit, " ('")));
    });
  }
}

TEST(Reducer, BucketsFollowBackwardAndAreLaunchedInOrder) {
  RunInProcess(3, [](ProcessGroup& group) {
    ToyModel model;
    ReducerOptions options = Small();
    std::vector<int64_t> told;
    std::map<int64_t, std::vector<int64_t>> of_lane;
    options.on_span = [&](const CommunicationSpan& s) {
      EXPECT_LE(s.begin, s.end);
      told.push_back(s.bucket);
      if (s.bucket >= 0) of_lane[s.lane].push_back(s.bucket);
    };
    Reducer reducer(&group, model.Parameters(), options);
    EXPECT_TRUE(reducer.buckets().empty());
    ToyBackward(model, MakeToyBatch(group.rank()), 1);
    const auto buckets = reducer.buckets();
    ASSERT_GE(buckets.size(), 3u);
    EXPECT_THAT(reducer.NamesIn(0), testing::Contains(testing::StartsWith("head.")));
    EXPECT_THAT(reducer.NamesIn(static_cast<int64_t>(buckets.size()) - 1),
                testing::Contains(testing::StartsWith("in.")));
    ASSERT_EQ(told.size(), buckets.size() + 1);
    EXPECT_EQ(told.back(), -1) << "the wait comes last";
    ASSERT_EQ(of_lane.size(), 2u);
    for (const auto& [lane, of] : of_lane) {
      for (int64_t i = 0; i < std::ssize(of); ++i) EXPECT_EQ(of[i], lane + 2 * i);
    }
  });
}

TEST(Reducer, BitsDoNotDependOnTheLanes) {
  for (const GradientSum sum : {GradientSum::kFast, GradientSum::kOrdered}) {
    const auto one = StepGradients(5, 12, Small({.sum = sum, .lanes = 1}));
    for (const int64_t lanes : {2, 3, 20}) {
      EXPECT_EQ(StepGradients(5, 12, Small({.sum = sum, .lanes = lanes})), one) << lanes;
    }
  }
}

// The first bucket's sum waits for the second's, so they must run concurrently.
TEST(Reducer, LanesSumAtTheSameTime) {
  std::atomic<int> together = 0;
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    std::promise<void> second_began;
    std::atomic<int> begun = 0;
    ReducerOptions options = Small({.lanes = 2});
    options.hook = [&](ProcessGroup& g, const Tensor& bucket, const std::string& purpose) {
      const int before = begun++;
      if (before == 1) second_began.set_value();
      if (before == 0) {
        together += second_began.get_future().wait_for(std::chrono::seconds(20)) ==
                    std::future_status::ready;
      }
      return LibrarySum()(g, bucket, purpose);
    };
    Reducer reducer(&group, model.Parameters(), options);
    ToyBackward(model, MakeToyBatch(group.rank()), 1);
  });
  EXPECT_EQ(together, 2);
}

// The other lane's bucket, and later ones, end or fail; nothing hangs.
TEST(Reducer, AHookThatFailsInOneLaneFailsOnAllRanks) {
  for (const int64_t lane : {0, 1}) {
    std::vector<std::string> messages(3);
    RunInProcess(3, [&](ProcessGroup& group) {
      ToyModel model;
      ReducerOptions options = Small({.lanes = 2});
      options.hook = [&](ProcessGroup& g, const Tensor& bucket, const std::string& purpose) {
        if (group.rank() == 1 && (&g == &group) == (lane == 0)) throw Error("no room for it");
        return LibrarySum()(g, bucket, purpose);
      };
      Reducer reducer(&group, model.Parameters(), options);
      messages[group.rank()] =
          test::MessageOf<Error>([&] { ToyBackward(model, MakeToyBatch(group.rank()), 1); });
    });
    EXPECT_THAT(messages[1], HasSubstr("no room for it")) << lane;
    for (const int other : {0, 2}) {
      EXPECT_THAT(messages[other], HasSubstr("backward failed on rank 1")) << lane;
    }
  }
}

// A custom hook may call its own groups, one call after the other.
TEST(Reducer, AHookHasOneLaneByDefault) {
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    ReducerOptions options = Small();
    options.hook = [&](ProcessGroup&, const Tensor& bucket, const std::string& purpose) {
      return LibrarySum()(group, bucket, purpose);
    };
    options.on_span = [](const CommunicationSpan& s) { EXPECT_EQ(s.lane, 0); };
    Reducer reducer(&group, model.Parameters(), options);
    ToyBackward(model, MakeToyBatch(group.rank()), 1);
  });
}

// The gradients of the last layers are summed before those of the first layers are computed;
// otherwise backward would wait for itself here.
TEST(Reducer, CommunicatesDuringBackward) {
  std::atomic<int> overlapped = 0;
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    std::promise<void> summed;
    std::atomic<int> buckets = 0;
    ReducerOptions options = Small();
    options.on_span = [&](const CommunicationSpan&) {
      if (buckets++ == 0) summed.set_value();
    };
    Reducer reducer(&group, model.Parameters(), options);
    model.in->AddPreBackwardHook([&](Module&) {
      overlapped +=
          summed.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    });
    ToyBackward(model, MakeToyBatch(group.rank()), 1);
    const CommunicationTimes& t = reducer.times();
    EXPECT_GT(t.overlapped_ms, 0);
    EXPECT_LE(t.overlapped_ms, t.communication_ms);
    EXPECT_GE(t.exposed_ms, 0);
  });
  EXPECT_EQ(overlapped, 2);
}

TEST(Reducer, NoSyncCommunicatesNothing) {
  RunInProcess(2, [](ProcessGroup& group) {
    ToyModel model;
    std::atomic<int> sums = 0;
    ReducerOptions options;
    options.hook = [&](ProcessGroup& g, const Tensor& bucket, const std::string& purpose) {
      ++sums;
      return LibrarySum()(g, bucket, purpose);
    };
    Reducer reducer(&group, model.Parameters(), options);
    {
      const Reducer::NoSync no_sync(reducer);
      ToyBackward(model, MakeToyBatch(group.rank()), 1);
      ToyBackward(model, MakeToyBatch(2 + group.rank()), 1);
      EXPECT_EQ(sums, 0);
    }
    ToyBackward(model, MakeToyBatch(4 + group.rank()), 1);
    EXPECT_EQ(sums, 1);
    ToyModel other;
    ToyBackward(other, MakeToyBatch(0, 6 * 4), 1);
    EXPECT_LT(MaxDifference(GradientsOf(model), GradientsOf(other)), 1e-5);
  });
}

// The error of each rank's `step(group, model, reducer)`.
template <class E = ReplicaError, class F>
std::vector<std::string> Messages(int ranks, ReducerOptions options, const F& step) {
  std::vector<std::string> messages(ranks);
  RunInProcess(ranks, [&](ProcessGroup& group) {
    ToyModel model;
    Reducer reducer(&group, model.Parameters(), options);
    messages[group.rank()] = test::MessageOf<E>([&] { step(group, model, reducer); });
  });
  return messages;
}

// Promise 7: named on every rank, and nothing hangs.
TEST(Reducer, AParameterThatSomeRanksDoNotUseIsNamed) {
  for (const int idle : {0, 1}) {  // rank 0 decides the buckets
    for (const GradientSum sum : {GradientSum::kFast, GradientSum::kOrdered}) {
      const auto messages =
          Messages(3, Small({.sum = sum}), [&](ProcessGroup& g, ToyModel& m, Reducer&) {
            m.use_extra = g.rank() != idle;
            ToyBackward(m, MakeToyBatch(g.rank()), 1);
          });
      EXPECT_THAT(messages, Each(AllOf(HasSubstr(StrCat("'extra.weight' on rank ", idle)),
                                       HasSubstr("(but on ranks "), HasSubstr("and for 1 more"),
                                       HasSubstr("conditional"))));
    }
  }
  EXPECT_THAT(Messages(2, {},
                       [](ProcessGroup&, ToyModel& m, Reducer&) {
                         m.use_extra = false;
                         ToyBackward(m, MakeToyBatch(0), 1);
                       }),
              Each(HasSubstr("'extra.weight' on ranks 0 and 1 and for 1 more")));
}

TEST(Reducer, AfterAnUnusedParameterTheRanksAreStillInStep) {
  RunInProcess(2, [](ProcessGroup& group) {
    ToyModel model;
    Reducer reducer(&group, model.Parameters(), Small());
    for (int step = 0; step < 3; ++step) {
      model.use_extra = !(step == 1 && group.rank() == 1);
      model.ZeroGrad();
      const std::string message =
          test::MessageOf<ReplicaError>([&] { ToyBackward(model, MakeToyBatch(group.rank()), 1); });
      EXPECT_EQ(message == "no error", step != 1) << message;
    }
    ToyModel both;
    ToyBackward(both, MakeToyBatch(0, 8), 1);
    EXPECT_LT(MaxDifference(GradientsOf(model), GradientsOf(both)), 1e-5);
  });
}

TEST(Reducer, ConditionalParametersMayBeUnused) {
  ReducerOptions options = Small();
  options.conditional = [](const Parameter& p) { return p.name().starts_with("extra"); };
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    Reducer reducer(&group, model.Parameters(), options);
    // Used in turn by both, by one, by none, and by the other.
    for (const auto& [by_0, by_1] : {std::pair(true, true), std::pair(true, false),
                                     std::pair(false, false), std::pair(false, true)}) {
      model.ZeroGrad();
      model.use_extra = group.rank() == 0 ? by_0 : by_1;
      ToyBackward(model, MakeToyBatch(group.rank()), 1);
      CheckGradients(group, model);
      EXPECT_EQ(model.extra->Parameters()[0]->grad().defined(), by_0 || by_1);
      // The sum over the ranks that used it.
      ToyModel a, b;
      a.use_extra = by_0;
      b.use_extra = by_1;
      ToyBackward(a, MakeToyBatch(0), 1);
      ToyBackward(b, MakeToyBatch(1), 1);
      for (size_t p = 0; p < model.Parameters().size(); ++p) {
        const Tensor got = model.Parameters()[p]->grad();
        if (!got.defined()) continue;
        std::vector<float> want(static_cast<size_t>(got.numel()));
        for (ToyModel* m : {&a, &b}) {
          const Tensor g = m->Parameters()[p]->grad();
          if (!g.defined()) continue;
          const std::vector<float> values = g.ToVector<float>();
          for (size_t i = 0; i < want.size(); ++i) want[i] += values[i];
        }
        EXPECT_LT(MaxDifference(got.ToVector<float>(), want), 1e-6)
            << model.Parameters()[p]->name();
      }
    }
  });
}

// A gradient of an earlier micro-step counts even if the last one does not use the parameter.
TEST(Reducer, OneUseAmongTheMicroStepsIsEnough) {
  for (const GradientSum sum : {GradientSum::kFast, GradientSum::kOrdered}) {
    RunInProcess(2, [&](ProcessGroup& group) {
      ToyModel model;
      Reducer reducer(&group, model.Parameters(), Small({.sum = sum, .micro_batches = 4}));
      {
        const Reducer::NoSync no_sync(reducer);
        ToyBackward(model, MakeToyBatch(group.rank()), 1);
      }
      model.use_extra = false;
      ToyBackward(model, MakeToyBatch(2 + group.rank()), 1);
      ToyModel first, second;
      second.use_extra = false;
      ToyBackward(first, MakeToyBatch(0, 8), 1);
      ToyBackward(second, MakeToyBatch(1, 8), 1);
      for (const auto& [name, p] : model.NamedParameters())
        ASSERT_TRUE(p->grad().defined()) << name;
      const auto got = model.extra->Parameters()[0]->grad().ToVector<float>();
      EXPECT_LT(MaxDifference(got, first.extra->Parameters()[0]->grad().ToVector<float>()), 1e-6);
    });
  }
}

TEST(Reducer, IfBackwardThrowsOnOneRankAllThrow) {
  std::vector<std::string> messages(3);
  try {
    RunInProcess(3, [&](ProcessGroup& group) {
      ToyModel model;
      Reducer reducer(&group, model.Parameters(), Small());
      if (group.rank() == 1) {
        model.shared->AddPreBackwardHook([](Module&) { throw std::runtime_error("bad luck"); });
      }
      try {
        ToyBackward(model, MakeToyBatch(group.rank()), 1);
      } catch (const std::exception& e) {
        messages[group.rank()] = e.what();
        throw;
      }
    });
    FAIL() << "no error";
  } catch (const std::exception& e) {
    EXPECT_STREQ(e.what(), "bad luck");
  }
  EXPECT_EQ(messages[1], "bad luck");
  for (const int r : {0, 2}) {
    EXPECT_THAT(messages[r], HasSubstr("backward failed on rank 1"));
  }
}

TEST(Reducer, RefusesWhatWouldBeSilentlyWrong) {
  const auto no_clear = [](ProcessGroup&, ToyModel& m, Reducer&) {
    ToyBackward(m, MakeToyBatch(0), 1);
    ToyBackward(m, MakeToyBatch(0), 1);
  };
  EXPECT_THAT(Messages<ArgumentError>(1, {}, no_clear),
              Each(AllOf(HasSubstr("'in.weight' already has a gradient"), HasSubstr("ZeroGrad"))));
  EXPECT_THAT(Messages<ArgumentError>(
                  1, {.sum = GradientSum::kOrdered, .micro_batches = 2},
                  [](ProcessGroup&, ToyModel& m, Reducer&) { ToyBackward(m, MakeToyBatch(0), 1); }),
              Each(HasSubstr("planned for 2 backwards per step, all but the last under NoSync; "
                             "backward 1 of this step is not under NoSync")));
  EXPECT_THAT(Messages<ArgumentError>(1, {},
                                      [](ProcessGroup&, ToyModel& m, Reducer& r) {
                                        ToyBackward(m, MakeToyBatch(0), 1);
                                        m.ZeroGrad();
                                        const auto p = m.Parameters()[0];
                                        p->leaf().SetDestination(
                                            Tensor::Zeros(p->value().shape(), DType::kF32));
                                        ToyBackward(m, MakeToyBatch(0), 1);
                                        (void)r;
                                      }),
              Each(HasSubstr("'in.weight' is not in its bucket")));
  ToyModel model;
  EXPECT_THAT(test::MessageOf([&] {
                Reducer(nullptr, model.Parameters(),
                        {.sum = GradientSum::kOrdered, .hook = LibrarySum()});
              }),
              HasSubstr("dist.reduction=fast"));
  EXPECT_THAT(test::MessageOf([&] { Reducer(nullptr, {}, {}); }),
              HasSubstr("needs a trainable parameter"));
}

TEST(Reducer, RanksWithoutDataJoin) {
  for (const GradientSum sum : {GradientSum::kFast, GradientSum::kOrdered}) {
    RunInProcess(3, [&](ProcessGroup& group) {
      CheckRanksWithoutDataJoin(group, Small({.sum = sum}), 1e-6);
    });
  }
}

TEST(Reducer, ARankMayJoinFromTheFirstStepOn) {
  RunInProcess(2, [](ProcessGroup& group) {
    ToyModel model, alone;
    Reducer reducer(&group, model.Parameters(), Small());
    if (group.rank() == 0) {
      reducer.Join();
    } else {
      ToyBackward(model, MakeToyBatch(1), 1);
    }
    ToyBackward(alone, MakeToyBatch(1), 1);
    EXPECT_EQ(GradientsOf(model), GradientsOf(alone));
  });
}

// Half the bytes; each part and the sum are rounded to 8 bits once.
TEST(Reducer, Bf16CompressionIsAsExactAsItSays) {
  const std::vector<float> exact = StepGradients(4, 4, Small());
  const std::vector<float> rounded = StepGradients(4, 4, Small({.hook = Bf16Sum()}));
  std::vector<double> parts(exact.size());
  for (int64_t m = 0; m < 4; ++m) {
    ToyModel model;
    ToyBackward(model, MakeToyBatch(m, kRows), 4 * kRows);
    const auto g = GradientsOf(model);
    for (size_t i = 0; i < g.size(); ++i) parts[i] += std::abs(g[i]);
  }
  int changed = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double bound = (parts[i] + std::abs(exact[i])) / 256 * 1.01 + 1e-30;
    EXPECT_LE(std::abs(rounded[i] - exact[i]), bound) << i;
    changed += rounded[i] != exact[i];
  }
  EXPECT_GT(changed, 0);
}

// Promise 18: the rank is known although the sum spreads the value everywhere.
TEST(Reducer, ANonFiniteGradientIsTracedToItsRank) {
  for (const GradientSum sum : {GradientSum::kFast, GradientSum::kOrdered}) {
    RunInProcess(4, [&](ProcessGroup& group) {
      ToyModel model;
      Reducer reducer(&group, model.Parameters(), Small({.sum = sum}));
      ToyBackward(model, MakeToyBatch(group.rank()), 1);
      EXPECT_EQ(reducer.LocateNonFinite(), "");
      model.ZeroGrad();
      ToyBatch batch = MakeToyBatch(group.rank());
      if (group.rank() == 2) batch.x.data<float>()[3] = INFINITY;
      ToyBackward(model, batch, 1);
      const std::string where = reducer.LocateNonFinite();
      EXPECT_THAT(where, testing::StartsWith("rank 2 ('"));
      EXPECT_THAT(where, testing::Not(HasSubstr(",")));
      // After the next step too.
      model.ZeroGrad();
      ToyBackward(model, MakeToyBatch(group.rank()), 1);
      EXPECT_EQ(reducer.LocateNonFinite(), "");
      EXPECT_EQ(reducer.LocateNonFinite(/*ago=*/1), where);
    });
  }
}

// Tensor::RegisterHook. Doubling is exact, so the bits are known.
TEST(Reducer, HooksSeeARanksOwnGradientsBeforeTheyAreSummed) {
  constexpr int64_t kMicroBatches = 4;
  const std::vector<float> plain = StepGradients(2, kMicroBatches, {.sum = GradientSum::kOrdered});
  RunInProcess(2, [&](ProcessGroup& group) {
    ToyModel model;
    std::vector<float> seen;  // of `shared`, which is used twice
    for (const auto& [name, p] : model.NamedParameters()) {
      p->value().RegisterHook([&, name = name](const Tensor& grad) {
        if (name == "shared.weight") seen = grad.ToVector<float>();
        return grad * 2.0;
      });
    }
    Reducer reducer(&group, model.Parameters(),
                    Small({.sum = GradientSum::kOrdered, .micro_batches = kMicroBatches}));
    for (const int64_t m : reducer.micro_order()) {
      std::optional<Reducer::NoSync> no_sync;
      if (m != reducer.micro_order().back()) no_sync.emplace(reducer);
      ToyModel alone;
      ToyBackward(alone, MakeToyBatch(m, kRows), kMicroBatches * kRows);
      ToyBackward(model, MakeToyBatch(m, kRows), kMicroBatches * kRows);
      EXPECT_EQ(seen, Flat({alone.NamedParameters()[2].second->grad()})) << m;
    }
    std::vector<float> half = GradientsOf(model);
    for (float& g : half) g /= 2;
    EXPECT_EQ(half, plain);
  });
}

TEST(Reducer, ASingleRankNeedsNoGroup) {
  ToyModel model, plain;
  Reducer reducer(nullptr, model.Parameters(), {});
  ToyBackward(model, MakeToyBatch(0), 1);
  ToyBackward(plain, MakeToyBatch(0), 1);
  EXPECT_EQ(GradientsOf(model), GradientsOf(plain));
  EXPECT_EQ(reducer.LocateNonFinite(), "");
}

}  // namespace
}  // namespace lockstep::dist
