// Recomputation: of whole forwards, and of single operations.
#include "core/autograd/recompute.h"

#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/allocator.h"
#include "core/autograd/node.h"
#include "core/autograd/recomputable_ops.h"
#include "tests/core/test_ops.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::LeafOf;
using test::MessageOf;
using test::Mul;
using test::Scale;
using test::Sum;
using test::Values;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Doubles = std::vector<double>;

// ---- Whole forwards ----

// f, recomputed.
struct Recomputed {
  explicit Recomputed(std::function<Tensor(const Tensor&)> f, bool stops_early = false)
      : f(std::move(f)), stops_early(stops_early) {}
  Tensor operator()(const Tensor& x) {
    RecomputeScope scope(
        this, std::span(&x, 1),
        [this](std::vector<Tensor> inputs) {
          EXPECT_TRUE(Recomputing());
          ++again;
          f(inputs.at(0));
        },
        stops_early);
    Tensor y = f(x);
    scope.AddOutput(y);
    return y;
  }
  std::function<Tensor(const Tensor&)> f;
  bool stops_early;
  int again = 0;
};

int64_t LiveBytes() { return GetAllocator(kCpu).stats().live_bytes; }

class RecomputeTest : public testing::Test {
 protected:
  struct Gradients {
    Doubles x, w;
    bool operator==(const Gradients&) const = default;
  };
  Gradients Take() {
    Gradients taken{Values(x_.grad()), Values(w_.grad())};
    x_.ZeroGrad();
    w_.ZeroGrad();
    return taken;
  }

  const Tensor w_ = LeafOf({0.3, -0.7, 1.1}), x_ = LeafOf({0.5, 1.5, -2.5});
  std::function<Tensor(const Tensor&)> segment_ = [this](const Tensor& x) {
    return Mul(Mul(x, w_), Mul(x, x));
  };
  Recomputed first_{segment_}, second_{segment_};
};

TEST_F(RecomputeTest, HasTheSameBitsAndRunsOncePerBackward) {
  Backward(Sum(segment_(segment_(x_))));
  const Gradients want = Take();
  const Tensor y = Sum(second_(first_(x_)));
  EXPECT_EQ(first_.again + second_.again, 0);
  Backward(y);
  EXPECT_EQ(Take(), want);
  EXPECT_EQ(first_.again, 1);
  EXPECT_EQ(second_.again, 1);
  EXPECT_FALSE(Recomputing());
}

TEST_F(RecomputeTest, KeepsOnlyInputsAndWhatIsOlder) {
  const int64_t before = LiveBytes();
  const Tensor plain = segment_(x_);
  const int64_t bytes = x_.bytes();
  EXPECT_EQ(LiveBytes() - before, 3 * bytes) << "two products and the result";
  const int64_t with_plain = LiveBytes();
  const Tensor y = first_(x_);
  EXPECT_EQ(LiveBytes() - with_plain, bytes);
}

TEST_F(RecomputeTest, ARetainedGraphIsRecomputedOncePerBackwardAndKeepsNothingBetween) {
  Backward(Sum(segment_(segment_(x_))));
  const Gradients want = Take();
  const Tensor y = Sum(second_(first_(x_)));
  const int64_t before = LiveBytes();
  for (int backward = 1; backward <= 3; ++backward) {
    Backward(y, {}, {.retain_graph = backward < 3});
    EXPECT_EQ(Take(), want);
    EXPECT_EQ(first_.again, backward);
    EXPECT_EQ(second_.again, backward);
    if (backward < 3) {
      EXPECT_EQ(LiveBytes(), before);
    }
  }
  EXPECT_LT(LiveBytes(), before);
}

// One recomputation for input and weight gradients, whichever comes first.
TEST_F(RecomputeTest, DeferredGradientsUseTheSameRecomputation) {
  Backward(Sum(segment_(segment_(x_))));
  const Gradients want = Take();
  for (const Tensor* deferred : {&w_, &x_}) {
    const Tensor y = Sum(second_(first_(x_)));
    DeferredGradients later;
    const Leaf* leaf = deferred->autograd()->leaf.get();
    Backward(y, {}, {.defer = [&](const Leaf& l) { return &l == leaf; }, .deferred = &later});
    EXPECT_FALSE(deferred->grad().defined());
    later.Run();
    EXPECT_EQ(Take(), want);
  }
  EXPECT_EQ(first_.again, 2);
  EXPECT_EQ(second_.again, 2);
}

TEST_F(RecomputeTest, ScopesNest) {
  Backward(Sum(segment_(Mul(segment_(x_), x_))));
  const Gradients want = Take();
  Recomputed inner(segment_);
  Recomputed outer([&](const Tensor& x) { return segment_(Mul(inner(x), x)); });
  Backward(Sum(outer(x_)));
  EXPECT_EQ(Take(), want);
  EXPECT_EQ(outer.again, 1);
  EXPECT_EQ(inner.again, 1);
}

TEST_F(RecomputeTest, StopsWhenAllThatIsAwaitedIsThereIfItMay) {
  for (const bool stops_early : {false, true}) {
    int ends = 0;
    Recomputed f(
        [&](const Tensor& x) {
          const Tensor y = segment_(x);
          ++ends;
          return Scale(y, 2);
        },
        stops_early);
    Backward(Sum(f(x_)));
    EXPECT_EQ(f.again, 1);
    EXPECT_EQ(ends, stops_early ? 1 : 2);
  }
}

// A user's forward may catch whatever is thrown in it, and go on in another way.
TEST_F(RecomputeTest, AForwardThatCatchesEverything) {
  Backward(Sum(segment_(x_)));
  const Gradients want = Take();
  for (const bool stops_early : {false, true}) {
    int caught = 0;
    Recomputed f(
        [&](const Tensor& x) {
          try {
            return segment_(x);
          } catch (...) {
            ++caught;
            return Mul(x, x);
          }
        },
        stops_early);
    Backward(Sum(f(x_)));
    EXPECT_EQ(Take(), want);
    EXPECT_EQ(caught, stops_early ? 1 : 0);
  }
}

TEST_F(RecomputeTest, OverwrittenInputsAndWeightsAreErrorsBeforeAnythingRunsAgain) {
  Tensor y = Sum(first_(Scale(x_, 1)));
  w_.Detach().Fill(2);
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }),
              AllOf(HasSubstr("b of test_mul"), HasSubstr("overwritten")));
  const Tensor input = Scale(x_, 1);
  y = Sum(first_(input));
  input.Detach().Fill(2);
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }), HasSubstr("overwritten"));
  EXPECT_EQ(first_.again, 0);
}

TEST_F(RecomputeTest, WritesToWhatWasRecomputedAreSeen) {
  Recomputed f([&](const Tensor& x) {
    const Tensor y = Mul(x, w_);
    const Tensor z = Mul(y, y);
    y.Detach().Fill(0);
    return Mul(z, z);
  });
  const Tensor y = Sum(f(x_));
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }), HasSubstr("overwritten"));
}

TEST_F(RecomputeTest, AForwardThatComputesSomethingElseIsRefused) {
  Recomputed fewer([&](const Tensor& x) {
    const Tensor y = Mul(x, w_);
    return Recomputing() ? y : Mul(y, y);
  });
  Tensor y = Sum(fewer(x_));
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }),
              HasSubstr("saved 4 tensors for backward, and 2 the second time"));
  Recomputed other([&](const Tensor& x) {
    Tensor y = Mul(x, w_);
    if (Recomputing()) y = y.Slice(0, 0, 2);
    return Mul(y, y);
  });
  y = Sum(other(x_));
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }),
              HasSubstr("saved a of test_mul as f64[3] in forward, and the second time f64[2]"));
}

// The first operation's result stands for the inputs.
TEST_F(RecomputeTest, AStartReplacesInputs) {
  Recomputed* self = nullptr;
  int starts = 0;
  Recomputed f([&](const Tensor& x) {
    ++starts;
    Tensor doubled;
    {
      RecomputeScope::Start start(self);
      // Its own saved tensors are kept.
      doubled = Recomputing() ? x : Mul(x, LeafOf({2, 2, 2}));
      if (Recomputing()) Mul(x, x);
      start.Replace({&doubled, 1});
    }
    return segment_(doubled);
  });
  self = &f;
  Backward(Sum(f(x_)));
  const Gradients got = Take();
  EXPECT_EQ(starts, 2);
  Backward(Sum(segment_(Mul(x_, LeafOf({2, 2, 2})))));
  EXPECT_EQ(got, Take());
}

// ---- Single operations ----

const bool registered =
    RegisterRecomputable("square") && RegisterRecomputable("cube") && RegisterRecomputable("other");

// A square, whose result a scope may have computed again.
Tensor Square(const Tensor& x, int& again) {
  const Tensor y = Mul(x, x);
  OfferRecompute("square", y, {{x, "x"}}, [&again](std::span<const Tensor> in) {
    ++again;
    return Mul(in[0], in[0]).View({1, in[0].numel()});
  });
  return y;
}

class RecomputeOperationTest : public testing::Test {
 protected:
  // x^2 w, where the results of these operations are computed again.
  Tensor Run(const std::vector<std::string>& ops) {
    const RecomputeScope scope(ops);
    return Mul(Square(x_, again_), w_);
  }
  std::pair<Doubles, Doubles> Take() {
    const std::pair<Doubles, Doubles> taken{Values(x_.grad()), Values(w_.grad())};
    x_.ZeroGrad();
    w_.ZeroGrad();
    return taken;
  }

  const Tensor w_ = LeafOf({2, 3}), x_ = LeafOf({5, 7});
  int again_ = 0;
};

TEST_F(RecomputeOperationTest, OnlyNamedResultsAreComputedAgain) {
  Backward(Sum(Run({"other"})));
  const auto want = Take();
  // Without a scope.
  Backward(Sum(Mul(Square(x_, again_), w_)));
  EXPECT_EQ(Take(), want);
  EXPECT_EQ(again_, 0);
  const int64_t before = LiveBytes();
  const Tensor y = Run({"cube", "square"});
  EXPECT_EQ(LiveBytes() - before, y.bytes()) << "x alone is kept";
  Backward(Sum(y));
  EXPECT_EQ(again_, 1);
  EXPECT_EQ(Take(), want);
}

TEST_F(RecomputeOperationTest, ANameThatNoOperationHasIsAnError) {
  EXPECT_THAT(MessageOf<ArgumentError>([&] {
                Run({"square", "sqare"});
              }),
              AllOf(HasSubstr("'sqare'"), HasSubstr("cube, other, square")));
  // Nor is there a scope then.
  Backward(Sum(Mul(Square(x_, again_), w_)));
  EXPECT_EQ(again_, 0);
}

// What was written to since is not what the operation computes.
TEST_F(RecomputeOperationTest, AResultThatChangedIsKept) {
  const RecomputeScope scope({"square"});
  const Tensor a = Mul(x_, x_);
  OfferRecompute("square", a, {},
                 [](std::span<const Tensor>) { return Tensor::Full({2}, NAN, DType::kF64); });
  a.Detach().Fill(4);
  Backward(Sum(Mul(a, w_)));
  EXPECT_THAT(Values(w_.grad()), ElementsAre(4, 4));
}

TEST_F(RecomputeOperationTest, NothingIsKeptBetweenBackwards) {
  const Tensor y = [&] {
    const RecomputeScope scope({"square"});
    const Tensor a = Square(x_, again_);
    return Sum(Mul(Mul(a, w_), Mul(a.View({2}), w_)));
  }();
  const int64_t before = LiveBytes();
  for (int backward = 1; backward <= 3; ++backward) {
    Backward(y, {}, {.retain_graph = backward < 3});
    EXPECT_EQ(again_, 2 * backward) << "for each node that needs it";
    // (w x^2)^2
    EXPECT_EQ(Take().second, (Doubles{2 * 2 * 625, 2 * 3 * 2401}));
    if (backward < 3) {
      EXPECT_EQ(LiveBytes(), before);
    }
  }
}

TEST_F(RecomputeOperationTest, WithinAForwardThatRunsAgain) {
  Backward(Sum(Run({})));
  const auto want = Take();
  Recomputed recomputed([&](const Tensor& x) {
    const RecomputeScope scope({"square"});
    return Mul(Square(x, again_), w_);
  });
  Backward(Sum(recomputed(x_)));
  EXPECT_EQ(Take(), want);
  EXPECT_EQ(again_, 1);
}

TEST_F(RecomputeOperationTest, AnOverwrittenInputIsAnError) {
  const RecomputeScope scope({"square"});
  const Tensor in = Scale(x_, 2), y = Sum(Mul(Square(in, again_), w_));
  in.Detach().Fill(0);
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }), HasSubstr("overwritten"));
  EXPECT_EQ(again_, 0);
}

// A scope whose inputs cannot be saved is none.
TEST_F(RecomputeTest, AFailureToSaveInputsLeavesNoScope) {
  {
    const SavedTensorHooks full(
        [](const Tensor&, const char*) -> std::any { throw Error("no room"); },
        [](const std::any&) { return Tensor(); });
    EXPECT_THROW(first_(x_), Error);
  }
  const Tensor choice = KeepChoice([] { return Tensor::Full({1}, 3, DType::kF64); });
  EXPECT_THAT(Values(choice), ElementsAre(3));
  Backward(Sum(second_(x_)));
  EXPECT_EQ(second_.again, 1);
}

}  // namespace
}  // namespace lockstep
