#include "core/autograd/function.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/autograd/grad_mode.h"
#include "tests/core/test_ops.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::Add;
using test::LeafOf;
using test::MessageOf;
using test::Mul;
using test::Scale;
using test::Sum;
using test::Values;
using testing::ElementsAre;
using testing::HasSubstr;

// x^2, whose gradient is made ten times too large, so that it is told from that of Mul.
const ops::Function square(
    "square",
    [](ops::Saved& saved, const Tensor& x) {
      saved.Keep(x);
      return Mul(x, x);
    },
    [](const ops::Saved& saved, const Tensor& dy) { return Scale(Mul(dy, saved[0]), 20); });

TEST(FunctionTest, HasTheGradientThatItSays) {
  const Tensor x = LeafOf({3, 5});
  const Tensor y = square(x);
  EXPECT_THAT(Values(y), ElementsAre(9, 25));
  Backward(Sum(Mul(y, Scale(x, 1))));  // y + x dy/dx
  EXPECT_THAT(Values(x.grad()), ElementsAre(9 + 3 * 60, 25 + 5 * 100));
}

TEST(FunctionTest, InputsArriveDetachedAndNothingIsRecordedWithin) {
  const Tensor x = LeafOf({3});
  bool recorded = true;
  const ops::Function f(
      "f",
      [&](ops::Saved&, const Tensor& in) {
        recorded = in.requires_grad() || Mul(in, in).requires_grad() || GradEnabled();
        return Scale(in, 2);
      },
      [](const ops::Saved&, const Tensor& dy) { return Scale(dy, 2); });
  const Tensor y = f(x);
  EXPECT_FALSE(recorded);
  EXPECT_TRUE(y.requires_grad());
}

TEST(FunctionTest, MayReturnItsInput) {
  const Tensor x = LeafOf({3});
  const ops::Function reverse(
      "reverse_gradient", [](ops::Saved&, const Tensor& in) { return in; },
      [](const ops::Saved&, const Tensor& dy) { return Scale(dy, -1); });
  Backward(Sum(reverse(x)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(-1));
}

TEST(FunctionTest, WithoutAGradientKeepsNothing) {
  int kept = 0;
  const SavedTensorHooks hooks(
      [&](const Tensor& tensor, const char*) {
        ++kept;
        return std::any(tensor);
      },
      [](const std::any& packed) { return std::any_cast<Tensor>(packed); });
  EXPECT_FALSE(square(Tensor::Full({1}, 3, DType::kF64)).requires_grad());
  {
    const NoGrad no_grad;
    EXPECT_FALSE(square(LeafOf({3})).requires_grad());
  }
  EXPECT_EQ(kept, 0);
  EXPECT_TRUE(square(LeafOf({3})).requires_grad());
  EXPECT_EQ(kept, 1);
}

TEST(FunctionTest, OfSeveralInputsComputesOnlyTheGradientsThatAreNeeded) {
  const Tensor a = LeafOf({3}), b = Tensor::Full({1}, 5, DType::kF64);
  std::vector<bool> needed;
  const ops::Function product(
      "product",
      [](ops::Saved& saved, const Tensor& x, const Tensor& y) {
        saved.Keep(x);
        saved.Keep(y);
        return Mul(x, y);
      },
      [&](const ops::Saved& saved, const Tensor& dy) {
        needed = {saved.Needs(0), saved.Needs(1)};
        return std::vector<Tensor>{saved.Needs(0) ? Mul(dy, saved[1]) : Tensor(),
                                   saved.Needs(1) ? Mul(dy, saved[0]) : Tensor()};
      });
  Backward(Sum(product(a, b)));
  EXPECT_THAT(needed, ElementsAre(true, false));
  EXPECT_THAT(Values(a.grad()), ElementsAre(5));
  const Tensor c = LeafOf({7});
  Backward(Sum(product(c, c)));
  EXPECT_THAT(Values(c.grad()), ElementsAre(14));
}

TEST(FunctionTest, OfSeveralResultsGetsAGradientForEach) {
  const ops::Function both(
      "both",
      [](ops::Saved&, const Tensor& x) {
        return std::vector<Tensor>{Scale(x, 2), Scale(x, 3)};
      },
      [](const ops::Saved&, const std::vector<Tensor>& dy) {
        return Add(Scale(dy[0], 2), Scale(dy[1], 3));
      });
  const Tensor x = LeafOf({1, 1});
  Backward(Sum(both(x)[1]));
  EXPECT_THAT(Values(x.grad()), ElementsAre(3, 3)) << "zeros for the result that is not used";
  const std::vector<Tensor> y = both(x);
  Backward(Sum(Add(y[0], Scale(y[1], 10))));
  EXPECT_THAT(Values(x.grad()), ElementsAre(35, 35));
}

TEST(FunctionTest, IntegerInputsHaveNoGradient) {
  const Tensor x = LeafOf({3, 5}), index = Tensor::FromVector<int32_t>({1, 0}, {2});
  const ops::Function take(
      "take",
      [](ops::Saved& saved, const Tensor& from, const Tensor& at) {
        saved.Keep(at);
        return Scale(from, at.ToVector<int32_t>()[0]);
      },
      [](const ops::Saved& saved, const Tensor& dy) {
        return std::vector<Tensor>{Scale(dy, saved[0].ToVector<int32_t>()[0]), Tensor()};
      });
  Backward(Sum(take(x, index)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(1, 1));
}

TEST(FunctionTest, IntegerResultsHaveNoGradient) {
  const Tensor x = LeafOf({3, 5});
  const ops::Function twice(
      "twice_and_its_sign",
      [](ops::Saved&, const Tensor& in) {
        return std::vector<Tensor>{in.To(DType::kI32), Scale(in, 2)};
      },
      [](const ops::Saved&, const std::vector<Tensor>& dy) {
        EXPECT_FALSE(dy[0].defined());
        return Scale(dy[1], 2);
      });
  const std::vector<Tensor> y = twice(x);
  EXPECT_FALSE(y[0].requires_grad());
  EXPECT_THAT(y[0].ToVector<int32_t>(), ElementsAre(3, 5));
  Backward(Sum(y[1]));
  EXPECT_THAT(Values(x.grad()), ElementsAre(2, 2));
}

TEST(FunctionTest, InputsMayBeUndefined) {
  const ops::Function add(
      "add_if_there",
      [](ops::Saved&, const Tensor& a, const Tensor& b) { return b.defined() ? Add(a, b) : a; },
      [](const ops::Saved& saved, const Tensor& dy) {
        return std::vector<Tensor>{dy, saved.Needs(1) ? dy : Tensor()};
      });
  const Tensor x = LeafOf({3}), bias = LeafOf({5});
  Backward(Sum(Add(add(x, Tensor()), add(x, bias))));
  EXPECT_THAT(Values(x.grad()), ElementsAre(2));
  EXPECT_THAT(Values(bias.grad()), ElementsAre(1));
}

// A loss that a loop keeps must not keep what the functions below it hold.
TEST(FunctionTest, BackwardLetsGoOfWhatTheFunctionHolds) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  Tensor loss;
  {
    const ops::Function f(
        "f", [](ops::Saved&, const Tensor& in) { return Scale(in, 2); },
        [held](const ops::Saved&, const Tensor& dy) { return Scale(dy, 2 * *held); });
    loss = Sum(f(LeafOf({3})));
  }
  held.reset();
  EXPECT_FALSE(watch.expired());
  Backward(loss);
  EXPECT_TRUE(watch.expired());
}

TEST(FunctionTest, RunsAgainWhereTheGraphIsRetained) {
  const Tensor x = LeafOf({3});
  const Tensor y = Sum(square(x));
  Backward(y, {}, {.retain_graph = true});
  Backward(y);
  EXPECT_THAT(Values(x.grad()), ElementsAre(120));
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }), HasSubstr("second backward through"));
}

TEST(FunctionTest, WhatWasKeptMustNotBeOverwritten) {
  const Tensor x = LeafOf({3});
  const Tensor y = square(x);
  x.Detach().Fill(7);
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }),
              HasSubstr("backward needs a tensor that the function 'square' saved (f64[1] on cpu) "
                        "as it was in forward, but it has been overwritten since"));
}

// The function and its name are gone when the graph runs.
TEST(FunctionTest, AGraphOutlivesItsFunction) {
  const Tensor x = LeafOf({3});
  Tensor y;
  {
    const ops::Function gone(
        std::string("a name that is too long to lie in the string itself"),
        [](ops::Saved& saved, const Tensor& in) {
          saved.Keep(in);
          return Scale(in, 2);
        },
        [factor = std::make_shared<double>(2)](const ops::Saved& saved, const Tensor& dy) {
          return Scale(Add(dy, Scale(saved[0], 0)), *factor);
        });
    y = gone(x);
  }
  Backward(y);
  EXPECT_THAT(Values(x.grad()), ElementsAre(2));
}

TEST(FunctionTest, MistakesAreErrorsThatNameIt) {
  const Tensor x = LeafOf({3, 5});
  const auto scale = [](ops::Saved& saved, const Tensor& in) {
    saved.Keep(in);
    return Scale(in, 2);
  };
  const auto error = [&](auto backward) {
    return MessageOf([&] { Backward(Sum(ops::Function("mine", scale, backward)(x))); });
  };
  EXPECT_THAT(error([](const ops::Saved&, const Tensor& dy) {
                return std::vector{dy, dy};
              }),
              HasSubstr("backward of the function 'mine' returned 2 gradients for 1 inputs"));
  EXPECT_THAT(error([](const ops::Saved&, const Tensor&) { return Tensor(); }),
              HasSubstr("backward of the function 'mine' gave no gradient for its input 0"));
  EXPECT_THAT(
      error([](const ops::Saved&, const Tensor&) { return Tensor::Zeros({1}, DType::kF64); }),
      HasSubstr("the Backward of node 'mine' gave a gradient of shape [1] for its input 0"));
  EXPECT_THAT(error([](const ops::Saved& saved, const Tensor&) { return saved[1]; }),
              HasSubstr("backward of the function 'mine' asks for saved tensor 1, but its forward "
                        "kept 1"));
  EXPECT_THAT(error([](const ops::Saved&, const Tensor& dy) {
                dy.Fill(1);
                return dy;
              }),
              HasSubstr("backward of the function 'mine' wrote to the gradient of result 0, whose "
                        "memory others share"));
  const auto forward_error = [&](auto forward) {
    return MessageOf([&] {
      ops::Function("mine", forward, [](const ops::Saved&, const Tensor& dy) { return dy; })(x);
    });
  };
  EXPECT_THAT(forward_error([](ops::Saved&, const Tensor& in) {
                in.Fill(1);
                return in;
              }),
              HasSubstr("forward of the function 'mine' wrote to its input 0"));
  EXPECT_THAT(forward_error([](ops::Saved&, const Tensor&) { return Tensor(); }),
              HasSubstr("result 0 of the function 'mine' is undefined"));
  EXPECT_THAT(forward_error([](ops::Saved& saved, const Tensor& in) {
                return saved.Needs(0) ? in : Scale(in, 2);
              }),
              HasSubstr("saved.Needs(0) in the function 'mine', which has 0 inputs to ask for: "
                        "call it in backward"));
}

}  // namespace
}  // namespace lockstep
