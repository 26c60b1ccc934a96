// Tensor::RegisterHook: what hooks see, when, and what becomes of what they return.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/parameter.h"
#include "tests/core/test_ops.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::Add;
using test::LeafOf;
using test::MessageOf;
using test::Mul;
using test::Scale;
using test::Split;
using test::Sum;
using test::Values;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Seen = std::vector<std::vector<double>>;

// Adds what it sees to `seen`.
auto See(Seen& seen) {
  return [&seen](const Tensor& grad) { seen.push_back(Values(grad)); };
}
// Returns `factor` times what it sees.
auto Times(double factor) {
  return [factor](const Tensor& grad) { return Scale(grad, factor); };
}

TEST(GradHookTest, OfALeafSeesTheWholeGradientOfABackwardOnce) {
  const Tensor x = LeafOf({3, 5});
  Seen seen;
  x.RegisterHook(See(seen));
  Backward(Sum(Mul(x, Scale(x, 2))));  // 2 x^2, to which x contributes twice
  EXPECT_THAT(seen, ElementsAre(ElementsAre(12, 20)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(12, 20));
  Backward(Sum(Scale(x, 7)));
  EXPECT_THAT(seen, ElementsAre(ElementsAre(12, 20), ElementsAre(7, 7)))
      << "without what the first backward left";
  EXPECT_THAT(Values(x.grad()), ElementsAre(19, 27));
}

TEST(GradHookTest, OfALeafReplacesWhatIsAddedToItsGradient) {
  const Tensor x = LeafOf({3, 5});
  x.RegisterHook(Times(10));
  Backward(Sum(Mul(x, x)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(60, 100));
  Backward(Sum(Scale(x, 7)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(130, 170)) << "not ten times the sum";
}

TEST(GradHookTest, OfALeafThatIsARootSeesItsRootGradient) {
  const Tensor x = LeafOf({3});
  Seen seen;
  x.RegisterHook(See(seen));
  Backward(x, Tensor::Full({1}, 4, DType::kF64));
  EXPECT_THAT(seen, ElementsAre(ElementsAre(4)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(4));
}

TEST(GradHookTest, OfAResultSeesTheSumOfItsUsesAndWhatFollowsSeesTheReplacement) {
  const Tensor x = LeafOf({3, 5});
  const Tensor y = Scale(x, 2);
  Seen seen, below;
  y.RegisterHook(See(seen));
  y.RegisterHook(Times(100));
  x.RegisterHook(See(below));
  Backward(Sum(Add(Mul(y, y), Scale(y, 3))));  // dy = 2 y + 3
  EXPECT_THAT(seen, ElementsAre(ElementsAre(15, 23)));
  EXPECT_THAT(below, ElementsAre(ElementsAre(3000, 4600)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(3000, 4600));
}

TEST(GradHookTest, OfARootSeesTheRootGradient) {
  const Tensor x = LeafOf({3, 5});
  const Tensor loss = Sum(x);
  loss.RegisterHook(Times(4));
  Backward(loss);
  EXPECT_THAT(Values(x.grad()), ElementsAre(4, 4));
}

TEST(GradHookTest, OfOneOfSeveralResultsRunsOnlyIfAGradientComes) {
  const Tensor x = LeafOf({1, 2, 3, 4});
  const auto [a, b] = Split(x);
  Seen of_a, of_b;
  a.RegisterHook(See(of_a));
  b.RegisterHook(See(of_b));
  Backward(Sum(Scale(b, 7)));
  EXPECT_THAT(of_a, IsEmpty());
  EXPECT_THAT(of_b, ElementsAre(ElementsAre(7, 7)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(0, 0, 7, 7));
}

TEST(GradHookTest, RunInTheOrderOfRegistrationAndNotOnceTheyAreRemoved) {
  const Tensor x = LeafOf({1});
  Seen seen;
  HookHandle first = x.RegisterHook(Times(2));
  x.RegisterHook(See(seen));
  HookHandle last = x.RegisterHook(Times(5));
  Backward(Sum(x));
  EXPECT_THAT(seen, ElementsAre(ElementsAre(2)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(10));
  first.Remove();
  first.Remove();
  last.Remove();
  Backward(Sum(x));
  EXPECT_THAT(seen, ElementsAre(ElementsAre(2), ElementsAre(1)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(11));
}

TEST(GradHookTest, AHandleMayOutliveItsTensorAndAHookMayRemoveItself) {
  std::optional<HookHandle> handle;
  {
    const Tensor gone = LeafOf({1});
    handle = gone.RegisterHook(Times(2));
  }
  handle->Remove();
  const Tensor x = LeafOf({1});
  handle = x.RegisterHook([&](const Tensor& grad) {
    handle->Remove();
    return Scale(grad, 3);
  });
  for (int i = 0; i < 2; ++i) Backward(Sum(x));
  EXPECT_THAT(Values(x.grad()), ElementsAre(3 + 1));
}

TEST(GradHookTest, AnUndefinedTensorLeavesTheGradient) {
  const Tensor x = LeafOf({1, 2});
  x.RegisterHook([](const Tensor&) { return Tensor(); });
  Backward(Sum(Scale(x, 3)));
  EXPECT_THAT(Values(x.grad()), ElementsAre(3, 3));
}

TEST(GradHookTest, RunAgainWhereAGraphIsRetained) {
  const Tensor x = LeafOf({3});
  const Tensor y = Mul(x, x);
  Seen seen;
  y.RegisterHook(See(seen));
  Backward(Sum(y), {}, {.retain_graph = true});
  Backward(Sum(y));
  EXPECT_THAT(seen, ElementsAre(ElementsAre(1), ElementsAre(1)));
}

TEST(GradHookTest, RecordNothing) {
  const Tensor x = LeafOf({3});
  Tensor kept;
  x.RegisterHook([&](const Tensor& grad) { return kept = Mul(grad, x); });
  Backward(Sum(x));
  EXPECT_FALSE(kept.requires_grad());
  EXPECT_THAT(Values(x.grad()), ElementsAre(3));
  x.grad().Fill(7);
  EXPECT_THAT(Values(kept), ElementsAre(3)) << "a leaf's gradient is its own memory";
}

// ---- Where gradients go ----

TEST(GradHookTest, TheGradientStaysInItsDestinationAndHasItsDType) {
  const Tensor bucket = Tensor::Full({5}, -1, DType::kF32);
  Tensor x = LeafOf({1, 2, 3}, DType::kBF16);
  x.autograd()->leaf->SetDestination(bucket.Slice(0, 1, 4));
  DType seen = DType::kBool;
  x.RegisterHook([&](const Tensor& grad) {
    seen = grad.dtype();
    return Scale(grad, 0.5);
  });
  // In bf16 256 + 1 = 256.
  Backward(Sum(Add(Scale(x, 256), Scale(x, 1))));
  EXPECT_EQ(seen, DType::kF32);
  EXPECT_THAT(Values(bucket), ElementsAre(-1, 128.5, 128.5, 128.5, -1));
  EXPECT_EQ(x.grad().raw_data(), bucket.Slice(0, 1, 4).raw_data());
  Backward(Sum(Scale(x, 2)));
  EXPECT_THAT(Values(bucket), ElementsAre(-1, 129.5, 129.5, 129.5, -1));
}

// What a leaf's gradient was when its observers heard of it.
struct Listener : BackwardObserver {
  void OnLeafReady(Leaf& leaf) override { heard.push_back(Values(leaf.grad())); }
  Seen heard;
};

TEST(GradHookTest, ObserversHearOfALeafAfterItsHooks) {
  const Tensor x = LeafOf({3}), w = LeafOf({5});
  Listener listener;
  x.autograd()->leaf->AddObserver(&listener);
  x.RegisterHook(Times(10));
  Backward(Sum(Mul(w, x)));  // Mul computes the gradient of an observed leaf first
  EXPECT_THAT(listener.heard, ElementsAre(ElementsAre(50)));
  EXPECT_THAT(Values(w.grad()), ElementsAre(3));
}

TEST(GradHookTest, OfADeferredLeafRunWhenItsGradientIsComputed) {
  const Tensor x = LeafOf({3}), w = LeafOf({5});
  Seen seen;
  w.RegisterHook(See(seen));
  w.RegisterHook(Times(10));
  DeferredGradients deferred;
  const BackwardOptions options{
      .defer = [&](const Leaf& leaf) { return &leaf == w.autograd()->leaf.get(); },
      .deferred = &deferred};
  Backward(Sum(Mul(Mul(w, x), w)), {}, options);  // x w^2
  Backward(Sum(Scale(w, 7)), {}, options);
  EXPECT_THAT(seen, IsEmpty());
  EXPECT_THAT(Values(x.grad()), ElementsAre(25));
  deferred.Run();
  EXPECT_THAT(seen, ElementsAre(ElementsAre(30), ElementsAre(7))) << "once for each backward";
  EXPECT_THAT(Values(w.grad()), ElementsAre(370));
}

// Puts its gradient, and notes who receives it.
struct AskingNode : Node {
  explicit AskingNode(Node** receiver) : Node("asking"), receiver(receiver) {}
  void Backward(Gradients& grads) override {
    *receiver = grads.receiver(0);
    grads.Put(0, grads[0]);
  }
  Node** receiver;
};

TEST(GradHookTest, NothingIsFusedIntoAGradientThatAHookSees) {
  for (const bool hooked : {false, true}) {
    const Tensor x = LeafOf({3});
    const Tensor y = Scale(x, 2);
    if (hooked) y.RegisterHook(Times(1));
    Node* receiver = nullptr;
    Tensor z = y.Detach();
    Record(std::make_shared<AskingNode>(&receiver), {&y}, {&z});
    Backward(z);
    EXPECT_EQ(receiver == nullptr, hooked);
  }
}

// ---- Mistakes ----

TEST(GradHookTest, WhatTheyReturnMustFit) {
  const Tensor x = LeafOf({1, 2});
  x.autograd()->leaf->set_name("h.0.weight");
  HookHandle hook = x.RegisterHook([](const Tensor&) { return Tensor::Zeros({1}, DType::kF64); });
  EXPECT_THAT(MessageOf([&] { Backward(Sum(x)); }),
              HasSubstr("a hook of 'h.0.weight' returned f64[1] on cpu in the place of its "
                        "gradient, f64[2] on cpu: they must be equal in shape, dtype and device"));
  EXPECT_FALSE(x.grad().defined()) << "a backward that fails adds nothing";
  hook.Remove();
  const Tensor y = Scale(x, 2);
  y.RegisterHook([](const Tensor& grad) { return grad.To(DType::kF32); });
  EXPECT_THAT(MessageOf([&] { Backward(Sum(y)); }),
              HasSubstr("a hook of output 0 of 'test_scale'"));
}

TEST(GradHookTest, MustNotWriteToTheGradient) {
  const Tensor x = LeafOf({1, 2});
  x.RegisterHook([](const Tensor& grad) { grad.Fill(0); });
  EXPECT_THAT(MessageOf([&] { Backward(Sum(x)); }),
              HasSubstr("a hook wrote to the gradient of 'unnamed', whose memory others may share: "
                        "return a new tensor instead"));
}

TEST(GradHookTest, RunInNoGraph) {
  const Tensor x = LeafOf({1, 2});
  x.RegisterHook(Times(2));
  {
    const RefuseGradHooks captured;
    EXPECT_THAT(MessageOf<Error>([&] { Backward(Sum(x)); }),
                HasSubstr("a hook of 'unnamed' cannot be part of a CUDA graph"));
  }
  x.ZeroGrad();
  Backward(Sum(x));
  EXPECT_THAT(Values(x.grad()), ElementsAre(2, 2));
}

TEST(GradHookTest, NeedATensorWithAGradient) {
  const Tensor x = Tensor::Zeros({2}, DType::kF32);
  EXPECT_THAT(MessageOf([&] { x.RegisterHook(Times(2)); }),
              HasSubstr("RegisterHook of f32[2] on cpu, for which backward computes no gradient"));
}

TEST(GradHookTest, OfAParameterComeBeforeItIsCutOnlyByMistake) {
  Parameter whole({4}, nullptr, false), part({4}, nullptr, false);
  whole.Materialize(kCpu, DType::kF32, 1);
  whole.value().RegisterHook(Times(2));
  const ShardLayout half{.range = ShardRange{"dp", 0, 2}};
  EXPECT_THAT(MessageOf([&] { whole.SetLayout(half); }), HasSubstr("before anything observes its"));
  part.Materialize(kCpu, DType::kF32, 1);
  part.set_name("wte");
  part.SetLayout(half);
  EXPECT_THAT(MessageOf([&] { part.value().RegisterHook(Times(2)); }),
              HasSubstr("'wte' can have no hook: it is sharded by ranges of its elements"));
}

}  // namespace
}  // namespace lockstep
