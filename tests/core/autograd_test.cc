// Leaves, gradients of nodes, and saved tensors.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/allocator.h"
#include "core/autograd/node.h"
#include "core/autograd/saved_tensor.h"
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
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Doubles = std::vector<double>;

// ---- Leaves ----

TEST(LeafTest, GradientIsUndefinedUntilABackwardReachesIt) {
  const Tensor x = LeafOf({2, 3});
  EXPECT_FALSE(x.grad().defined());
  Backward(Sum(Mul(x, x)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(4, 6));
  x.ZeroGrad();
  EXPECT_FALSE(x.grad().defined());
}

TEST(LeafTest, GradientsAccumulateOverBackwards) {
  const Tensor x = LeafOf({2, 3});
  Backward(Sum(Mul(x, x)));
  Backward(Sum(Scale(x, 10)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(14, 16));
}

TEST(LeafTest, AGradientThatTheUserHoldsDoesNotChangeUnderHim) {
  const Tensor x = LeafOf({2, 3});
  Backward(Sum(Mul(x, x)));
  const Tensor held = x.grad();
  Backward(Sum(Mul(x, x)));
  EXPECT_THAT(Values(held), ElementsAre(4, 6));
  EXPECT_THAT(Values(x.grad()), ElementsAre(8, 12));
  const Tensor held_again = x.grad();
  Backward(Sum(x));  // Put instead of Open
  EXPECT_THAT(Values(held_again), ElementsAre(8, 12));
  EXPECT_THAT(Values(x.grad()), ElementsAre(9, 13));
}

TEST(LeafTest, OnlyLeavesHaveGradients) {
  const Tensor x = LeafOf({1});
  EXPECT_THAT(MessageOf<Error>([&] { Scale(x, 2).grad(); }), HasSubstr("only a leaf"));
  EXPECT_THAT(MessageOf<Error>([&] { Tensor::Zeros({1}, DType::kF32).grad(); }),
              HasSubstr("only a leaf"));
  EXPECT_THAT(MessageOf<Error>([&] { Scale(x, 2).SetRequiresGrad(false); }), HasSubstr("Detach()"));
  EXPECT_THAT(MessageOf<Error>([&] { Tensor::Zeros({1}, DType::kI32).SetRequiresGrad(); }),
              HasSubstr("only floating tensors have gradients, not i32[1]"));
}

TEST(LeafTest, CopiesOfAHandleAreTheSameLeaf) {
  const Tensor x = LeafOf({2});
  const Tensor y = x;
  Backward(Sum(Mul(x, y)));
  EXPECT_THAT(Values(y.grad()), ElementsAre(4));
}

TEST(LeafTest, NoGradRecordsNothing) {
  const Tensor x = LeafOf({2});
  {
    NoGrad no_grad;
    EXPECT_FALSE(GradEnabled());
    EXPECT_FALSE(Scale(x, 2).requires_grad());
    GradMode again(true);
    EXPECT_TRUE(Scale(x, 2).requires_grad());
  }
  EXPECT_TRUE(GradEnabled());
  EXPECT_THAT(MessageOf<Error>([&] { Backward(Tensor::Zeros({}, DType::kF64)); }),
              HasSubstr("NoGrad"));
}

TEST(LeafTest, OwnGradientsHaveTheDTypeAskedFor) {
  // The node may open a gradient in its own dtype or in any, or hand over a tensor.
  for (const auto& function : std::vector<std::function<Tensor(const Tensor&)>>{
           [](const Tensor& x) { return Mul(x, x); }, [](const Tensor& x) { return Scale(x, 2); },
           [](const Tensor& x) { return Add(x, x); }}) {
    const Tensor x = LeafOf({1, 2}, DType::kBF16);
    x.autograd()->leaf->SetDType(DType::kF32);
    for (int i = 0; i < 3; ++i) {
      Backward(Sum(function(x)));
      EXPECT_EQ(x.grad().dtype(), DType::kF32) << "backward " << i;
    }
  }
}

// Later writes to the given tensor do not affect the gradient.
TEST(LeafTest, SetGradCopies) {
  const Tensor x = LeafOf({1, 2});
  Leaf& leaf = *x.autograd()->leaf;
  const Tensor mine = Tensor::FromVector<double>({7, 8}, {2});
  leaf.SetGrad(mine);
  mine.Fill(0);
  EXPECT_THAT(Values(x.grad()), ElementsAre(7, 8));
  x.grad().Fill(3);  // as clipping does
  EXPECT_THAT(Values(mine), ElementsAre(0, 0));
}

TEST(LeafTest, SetGradReplacesIt) {
  const Tensor x = LeafOf({1, 2});
  Leaf& leaf = *x.autograd()->leaf;
  const Tensor mine = Tensor::FromVector<double>({7, 8}, {2});
  leaf.SetGrad(mine);
  EXPECT_THAT(Values(x.grad()), ElementsAre(7, 8));
  Backward(Sum(x));
  EXPECT_THAT(Values(x.grad()), ElementsAre(8, 9));
  EXPECT_THAT(Values(mine), ElementsAre(7, 8));
  EXPECT_THAT(MessageOf<Error>([&] { leaf.SetGrad(Tensor::Zeros({3}, DType::kF64)); }),
              HasSubstr("of shape [2]"));
}

// ---- Gradient destinations ----

TEST(DestinationTest, MainGradientOfABf16LeafKeepsF32Precision) {
  const Tensor x = LeafOf({1, 1}, DType::kBF16);
  const Tensor main = Tensor::Full({2}, NAN, DType::kF32);
  x.autograd()->leaf->SetDestination(main);
  // In bf16 256 + 1 = 256: adding 1 ten times shows whether the sum is kept in f32.
  Backward(Sum(Scale(x, 256)));
  for (int i = 0; i < 10; ++i) Backward(Sum(Scale(x, 1)));
  EXPECT_THAT(Values(main), ElementsAre(266, 266));
  EXPECT_EQ(x.grad().raw_data(), main.raw_data());
  // Through a scratch in the node's own dtype, and by Put.
  Backward(Sum(Mul(x, Tensor::Full({2}, 1, DType::kBF16))));
  Backward(Sum(x));
  EXPECT_THAT(Values(main), ElementsAre(268, 268));
}

TEST(DestinationTest, SlicesOfABucketGetTheirGradientsAndNothingElseIsTouched) {
  const Tensor bucket = Tensor::Full({6}, -1, DType::kF64);
  const Tensor x = LeafOf({1, 2}), y = LeafOf({3, 4});
  x.autograd()->leaf->SetDestination(bucket.Slice(0, 1, 3));
  y.autograd()->leaf->SetDestination(bucket.Slice(0, 3, 5));
  Backward(Sum(Mul(x, y)));
  EXPECT_THAT(Values(bucket), ElementsAre(-1, 3, 4, 1, 2, -1));
  Backward(Sum(Mul(x, y)));
  EXPECT_THAT(Values(bucket), ElementsAre(-1, 6, 8, 2, 4, -1));
}

TEST(DestinationTest, FreshAfterZeroGradOverwritesWithoutClearing) {
  const Tensor x = LeafOf({1, 2});
  const Tensor main = Tensor::Full({2}, NAN, DType::kF64);  // NaN survives any addition
  x.autograd()->leaf->SetDestination(main);
  EXPECT_FALSE(x.grad().defined());
  for (const auto& loss : std::vector<std::function<Tensor()>>{[&] { return Sum(Mul(x, x)); },
                                                               [&] { return Sum(Add(x, x)); },
                                                               [&] { return Sum(Scale(x, 2)); }}) {
    main.Fill(NAN);
    x.ZeroGrad();
    EXPECT_FALSE(x.grad().defined());
    EXPECT_TRUE(std::isnan(Values(main)[0])) << "ZeroGrad must not write";
    Backward(loss());
    EXPECT_FALSE(std::isnan(Values(main)[0]) || std::isnan(Values(main)[1]));
  }
}

TEST(DestinationTest, SetGradCopiesIntoIt) {
  const Tensor x = LeafOf({1, 2});
  const Tensor main = Tensor::Zeros({2}, DType::kF32);
  x.autograd()->leaf->SetDestination(main);
  x.autograd()->leaf->SetGrad(Tensor::FromVector<double>({5, 6}, {2}));
  EXPECT_THAT(Values(main), ElementsAre(5, 6));
  EXPECT_EQ(x.grad().raw_data(), main.raw_data());
}

TEST(DestinationTest, RefusesWhatCannotHoldTheGradient) {
  const Tensor x = LeafOf({1, 2});
  Leaf& leaf = *x.autograd()->leaf;
  leaf.set_name("h.0.weight");
  EXPECT_THAT(MessageOf<Error>([&] { leaf.SetDestination(Tensor::Zeros({3}, DType::kF32)); }),
              HasSubstr("'h.0.weight' needs a contiguous floating destination of shape [2]"));
  EXPECT_THROW(leaf.SetDestination(Tensor::Zeros({2}, DType::kI32)), ArgumentError);
  EXPECT_THROW(leaf.SetDestination(Tensor::Zeros({2, 2}, DType::kF32)
                                       .Transpose(0, 1)
                                       .Slice(1, 0, 1)
                                       .Expand({2, 2})
                                       .Slice(0, 0, 1)),
               ArgumentError);
  EXPECT_THROW(leaf.SetDestination(Tensor()), ArgumentError);
}

// ---- Aliasing ----

TEST(AliasingTest, AGradientHandedToTwoInputsIsNotAddedToInPlace) {
  // y = a + b hands one gradient to both; a gets a second one, which b must not see.
  const Tensor x = LeafOf({1, 2}), z = LeafOf({3, 4});
  const Tensor a = Scale(x, 1), b = Scale(z, 1);
  const Tensor extra = Scale(a, 100);
  const Tensor y = Add(a, b);
  Backward(Sum(Add(y, extra)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(101, 101));
  EXPECT_THAT(Values(z.grad()), ElementsAre(1, 1));
}

TEST(AliasingTest, SameOrdersTheOtherWayRound) {
  const Tensor x = LeafOf({1, 2}), z = LeafOf({3, 4});
  const Tensor a = Scale(x, 1), b = Scale(z, 1);
  const Tensor y = Add(a, b);
  const Tensor extra = Scale(a, 100);  // runs before y's node
  Backward(Sum(Add(extra, y)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(101, 101));
  EXPECT_THAT(Values(z.grad()), ElementsAre(1, 1));
}

TEST(AliasingTest, TheRootGradientIsNotWritten) {
  const Tensor x = LeafOf({1, 2});
  const Tensor a = Scale(x, 3);
  const Tensor root = Add(a, a);
  const Tensor grad = Tensor::FromVector<double>({1, 10}, {2});
  Backward(root, grad);
  EXPECT_THAT(Values(x.grad()), ElementsAre(6, 60));
  EXPECT_THAT(Values(grad), ElementsAre(1, 10));
  // Also straight into a leaf: the user's tensor must not be what optimizers then overwrite.
  const Tensor z = LeafOf({0, 0});
  Backward(z, grad);
  z.grad().Fill(0);
  EXPECT_THAT(Values(grad), ElementsAre(1, 10));
}

TEST(AliasingTest, OneInputTwiceInOneNode) {
  using Function = Tensor (*)(const Tensor&, const Tensor&);
  for (Function mul : {&Mul, &test::MulOpeningFirst, &test::MulMixed}) {
    const Tensor x = LeafOf({3, 5});
    Backward(Sum(mul(x, x)));  // into a leaf
    EXPECT_THAT(Values(x.grad()), ElementsAre(6, 10));
    Backward(Sum(mul(x, x)));  // into a leaf that has a gradient
    EXPECT_THAT(Values(x.grad()), ElementsAre(12, 20));
    const Tensor main = Tensor::Full({2}, NAN, DType::kF32);  // into a destination
    x.autograd()->leaf->SetDestination(main);
    Backward(Sum(mul(x, x)));
    EXPECT_THAT(Values(main), ElementsAre(6, 10));
    const Tensor z = LeafOf({3, 5});
    const Tensor a = Scale(z, 1);
    Backward(Sum(mul(a, a)));  // into an inner buffer
    EXPECT_THAT(Values(z.grad()), ElementsAre(6, 10));
  }
  const Tensor x = LeafOf({3, 5});
  Backward(Sum(Add(x, x)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(2, 2));
}

TEST(AliasingTest, NeedsOnlyNamesWhatIsAskedFor) {
  const Tensor x = LeafOf({3, 5}), constant = Tensor::FromVector<double>({2, 2}, {2});
  test::counters = {};
  Backward(Sum(Mul(x, constant)));
  EXPECT_EQ(test::counters.first, 1);
  EXPECT_EQ(test::counters.second, 0);
}

// ---- Saved tensors ----

TEST(SavedTensorTest, OverwritingOneIsAnErrorThatNamesItAndTheFix) {
  const Tensor x = LeafOf({1, 2}), w = Tensor::FromVector<double>({3, 4}, {2});
  const Tensor y = Sum(Mul(x, w));
  w.Fill(0);
  const std::string message = MessageOf<Error>([&] { Backward(y); });
  EXPECT_THAT(message, HasSubstr("b of test_mul (f64[2] on cpu)"));
  EXPECT_THAT(message, HasSubstr("overwritten"));
  EXPECT_THAT(message, HasSubstr("Clone()"));
}

TEST(SavedTensorTest, WritesThroughAnyViewAreSeen) {
  const Tensor x = LeafOf({1, 2}), w = Tensor::FromVector<double>({3, 4, 5, 6}, {2, 2});
  const Tensor y = Sum(Mul(x, w.Slice(0, 0, 1).View({2})));
  w.Transpose(0, 1).CopyFrom(Tensor::Zeros({2, 2}, DType::kF32));
  EXPECT_THAT(MessageOf<Error>([&] { Backward(y); }), HasSubstr("overwritten"));
}

TEST(SavedTensorTest, WritesAfterBackwardAreFine) {
  const Tensor x = LeafOf({1, 2}), w = Tensor::FromVector<double>({3, 4}, {2});
  Backward(Sum(Mul(x, w)));
  w.Fill(0);
  EXPECT_THAT(Values(x.grad()), ElementsAre(3, 4));
}

TEST(SavedTensorTest, BackwardFreesWhatForwardKept) {
  const Tensor x = LeafOf({1, 2});
  const Tensor w = Tensor::FromVector<double>({3, 4}, {2});
  const Tensor y = Sum(Mul(x, w));
  EXPECT_FALSE(w.storage().unique());
  Backward(y);
  EXPECT_TRUE(w.storage().unique());
}

TEST(SavedTensorTest, UndefinedStaysUndefined) {
  SavedTensor saved(Tensor(), "nothing");
  EXPECT_FALSE(saved.defined());
  EXPECT_FALSE(saved.Unpack().defined());
}

TEST(SavedTensorHooksTest, PackAndUnpackInsteadOfKeeping) {
  const Tensor x = LeafOf({1.0, 2.0}), w = Tensor::FromVector<double>({3, 4}, {2});
  int packed = 0, unpacked = 0;
  Tensor y;
  {
    // Offload: a copy elsewhere, so that even overwriting the original does no harm.
    SavedTensorHooks hooks(
        [&](const Tensor& t, const char* what) {
          EXPECT_FALSE(t.requires_grad());
          EXPECT_THAT(what, HasSubstr(" of test_mul"));
          ++packed;
          return std::any(t.Clone());
        },
        [&](const std::any& kept) {
          ++unpacked;
          return std::any_cast<Tensor>(kept);
        });
    y = Sum(Mul(x, w));
  }
  Mul(x, w);  // outside of the scope
  EXPECT_EQ(packed, 2);
  EXPECT_EQ(unpacked, 0);
  w.Fill(0);
  Backward(y);
  EXPECT_EQ(unpacked, 2);
  EXPECT_THAT(Values(x.grad()), ElementsAre(3, 4));
}

TEST(SavedTensorHooksTest, TheInnermostScopeWins) {
  std::vector<std::string> seen;
  const auto naming = [&](std::string name) {
    return [&seen, name](const Tensor& t, const char*) {
      seen.push_back(name);
      return std::any(t);
    };
  };
  const auto unpack = [](const std::any& kept) { return std::any_cast<Tensor>(kept); };
  const Tensor x = LeafOf({1});
  SavedTensorHooks outer(naming("outer"), unpack);
  {
    SavedTensorHooks inner(naming("inner"), unpack);
    Mul(x, x);
  }
  Mul(x, x);
  EXPECT_THAT(seen, ElementsAre("inner", "inner", "outer", "outer"));
}

TEST(SavedTensorHooksTest, PackMayKeepNothing) {
  const Tensor x = LeafOf({3});
  Tensor y;
  {
    SavedTensorHooks hooks([](const Tensor&, const char*) { return std::any(); },
                           [](const std::any&) { return Tensor::Full({1}, 3, DType::kF64); });
    y = Sum(Mul(x, x));
  }
  Backward(y);
  EXPECT_THAT(Values(x.grad()), ElementsAre(6));
}

TEST(SavedTensorHooksTest, WhatPackSavesGoesToTheScopeAround) {
  int outer_packed = 0;
  const auto unpack = [](const std::any& kept) {
    return std::any_cast<SavedTensor>(kept).Unpack();
  };
  const Tensor x = LeafOf({3});
  SavedTensorHooks outer(
      [&](const Tensor& t, const char*) {
        ++outer_packed;
        return std::any(SavedTensor(t.Clone(), "a copy"));
      },
      unpack);
  Tensor y;
  {
    SavedTensorHooks inner(
        [](const Tensor& t, const char* what) { return std::any(SavedTensor(t, what)); }, unpack);
    y = Sum(Mul(x, x));
    const SavedTensorHooks::Pause pause(inner);
    EXPECT_EQ(outer_packed, 2);
    Mul(x, x);
    EXPECT_EQ(outer_packed, 4);
  }
  Backward(y);
  EXPECT_THAT(Values(x.grad()), ElementsAre(6));
}

// ---- Recording ----

TEST(RecordTest, AnInputNewerThanTheNodeIsRefused) {
  struct Nothing : Node {
    Nothing() : Node("nothing") {}
    void Backward(Gradients&) override {}
  };
  const auto early = std::make_shared<Nothing>();
  const Tensor input = Scale(LeafOf({1}), 2);
  Tensor output = Tensor::Zeros({1}, DType::kF64);
  EXPECT_THAT(MessageOf<Error>([&] { Record(early, {&input}, {&output}); }),
              HasSubstr("the node 'nothing' was made before its input"));
}

// A saved tensor that was overwritten is noticed before its leaf has a gradient, or after.
TEST(RecordTest, AfterAnErrorALeafHasNoGradient) {
  struct Opens : Node {
    Opens() : Node("opens") {}
    void Backward(Gradients& grads) override {
      grads.Open(0);
      throw Error("in the middle");
    }
  };
  const Tensor x = LeafOf({1, 2});
  Tensor y = x.Detach();
  Record(std::make_shared<Opens>(), {&x}, {&y});
  EXPECT_THROW(Backward(Sum(y)), Error);
  EXPECT_FALSE(x.grad().defined());
  Backward(Sum(Scale(x, 3)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(3, 3));
}

// A user's node, with a rule for what it puts for its inputs, if anything.
struct UserNode : Node {
  using Rule = std::function<void(Gradients&)>;
  explicit UserNode(Rule rule) : Node("my_node"), rule_(std::move(rule)) {}
  void Backward(Gradients& grads) override { rule_(grads); }
  Rule rule_;
};

// Backward's error for the rule; the second input is a leaf or another node's result.
std::string ErrorOfRule(const UserNode::Rule& rule, bool of_leaf) {
  const Tensor a = LeafOf({1, 2, 3}), b = of_leaf ? LeafOf({1, 2}) : Scale(LeafOf({1, 2}), 2);
  Tensor output = Tensor::Zeros({}, DType::kF64);
  Record(std::make_shared<UserNode>(rule), {&a, &b}, {&output});
  return MessageOf<ArgumentError>([&] { Backward(output); });
}

TEST(RecordTest, MistakesOfANodeNameItItsInputAndTheFix) {
  const auto zeros = [](const Shape& shape, DType dtype = DType::kF64) {
    return Tensor::Zeros(shape, dtype);
  };
  for (const bool of_leaf : {false, true}) {
    const auto error = [&](const UserNode::Rule& rule) { return ErrorOfRule(rule, of_leaf); };
    EXPECT_EQ(error([&](Gradients& grads) {
                grads.Put(0, zeros({3}));
                grads.Put(1, zeros({2}));
              }),
              "no error");
    EXPECT_THAT(
        error([&](Gradients& grads) { grads.Put(0, zeros({3})); }),
        HasSubstr("the Backward of node 'my_node' gave no gradient for its input 1, of shape "
                  "[2], which needs one: call grads.Put(1, ...), or write to "
                  "grads.Open(1); where it is zero, put Tensor::Zeros"));
    EXPECT_THAT(
        error([&](Gradients& grads) {
          grads.Put(0, zeros({3}));
          grads.Put(1, zeros({3}));
        }),
        HasSubstr("the Backward of node 'my_node' gave a gradient of shape [3] for its input "
                  "1, whose shape is [2]: they must be equal; sum over broadcast dimensions"));
    EXPECT_THAT(error([&](Gradients& grads) {
                  grads.Put(0, zeros({3}));
                  grads.Put(0, zeros({3}));
                }),
                HasSubstr("the Backward of node 'my_node' gave two gradients for its input 0: add "
                          "them up first"));
    EXPECT_THAT(error([&](Gradients& grads) { grads.Put(0, Tensor()); }),
                HasSubstr("gave an undefined gradient for its input 0"));
  }
  EXPECT_THAT(
      ErrorOfRule(
          [&](Gradients& grads) {
            grads.Put(0, zeros({3}));
            grads.Put(1, zeros({2}, DType::kF32));
          },
          false),
      HasSubstr("the Backward of node 'my_node' gave a gradient of f32 on cpu for its input "
                "1, which is f64 on cpu: they must be equal; use To(...)"));
  const Tensor a = LeafOf({1}), b = Tensor::Zeros({1}, DType::kF64);
  Tensor output = Tensor::Zeros({}, DType::kF64);
  Record(std::make_shared<UserNode>([&](Gradients& grads) {
           grads.Put(0, zeros({1}));
           grads.Put(1, zeros({1}));
         }),
         {&a, &b}, {&output});
  EXPECT_THAT(MessageOf<ArgumentError>([&] { Backward(output); }),
              HasSubstr("the Backward of node 'my_node' gave a gradient for its input 1, which "
                        "needs none: check needs(1) first"));
}

}  // namespace
}  // namespace lockstep
