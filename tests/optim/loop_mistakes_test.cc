// What a user's loop may forget: each throws, and the message says what to write.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <thread>

#include "core/autograd/engine.h"
#include "kernels/binary/binary.h"
#include "kernels/cast/cast.h"
#include "kernels/dropout/dropout.h"
#include "kernels/reduce/reduce.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/sgd.h"
#include "tests/message_of.h"
#include "tests/optim/optim_test_util.h"

namespace lockstep::optim {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kBegin[] = "const auto training = optimizer.BeginStep(state, step, learning_rate);";

using test::MessageOf;

std::vector<std::shared_ptr<Parameter>> OneParameter(DType dtype = DType::kF32) {
  return {MakeParameter("w", Noise({8}, 1, 1, dtype), true)};
}

// A step that ends when one pleases.
struct StepOf {
  StepOf(Optimizer& optimizer, StepState& state) : step(optimizer.BeginStep(state, 0, 0.1)) {}
  const TrainingStep step;
};

void SetGradient(const std::shared_ptr<Parameter>& p) {
  p->leaf().SetGrad(Noise(p->value().shape(), 2, 1, p->value().dtype()));
}

TEST(LoopMistakes, AStepThatWasNotBegun) {
  const auto parameters = OneParameter();
  const auto before = Bits(parameters[0]->value());
  SetGradient(parameters[0]);
  AdamW adamw(parameters);
  StepState state(kCpu, 1);
  EXPECT_THAT(MessageOf([&] { adamw.Step(state); }),
              AllOf(HasSubstr("AdamW::Step: no step is under way"), HasSubstr(kBegin)));
  EXPECT_THAT(MessageOf([&] { ClipGradNorm(parameters, 1, state); }),
              AllOf(HasSubstr("ClipGradNorm: no step is under way"), HasSubstr(kBegin)));
  EXPECT_EQ(Bits(parameters[0]->value()), before);
}

TEST(LoopMistakes, AResultThatIsNotKeptEndsTheStep) {
  AdamW adamw(OneParameter());
  StepState state(kCpu, 1);
  (void)adamw.BeginStep(state, 0, 0.1);
  EXPECT_THAT(MessageOf([&] { adamw.Step(state); }), HasSubstr("keep the result until after Step"));
}

// BeginStep before the loop: one learning rate, and one set of masks, forever.
TEST(LoopMistakes, TwoUpdatesOfOneStep) {
  AdamW adamw(OneParameter());
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  SetGradient(adamw.parameters()[0]);
  adamw.Step(state);
  EXPECT_THAT(MessageOf([&] { adamw.Step(state); }),
              AllOf(HasSubstr("was updated already"), HasSubstr(kBegin)));
}

// A forgotten ZeroGrad, whose gradients would add up forever; or a forward ahead of BeginStep, in
// which dropout did nothing.
TEST(LoopMistakes, GradientsThatAreThereAlready) {
  AdamW adamw(OneParameter());
  StepState state(kCpu, 1);
  SetGradient(adamw.parameters()[0]);
  EXPECT_THAT(MessageOf([&] { (void)adamw.BeginStep(state, 0, 0.1); }),
              AllOf(HasSubstr("'w' has a gradient already"), HasSubstr("optimizer.ZeroGrad()"),
                    HasSubstr("BeginStep before the forward")));
  adamw.ZeroGrad();
  const auto training = adamw.BeginStep(state, 0, 0.1);
}

TEST(LoopMistakes, AForwardBeforeItsStep) {
  const auto parameters = OneParameter();
  AdamW adamw(parameters);
  StepState state(kCpu, 1);
  const Tensor loss = ops::Sum(ops::Dropout(parameters[0]->value(), 0.5, /*site=*/3));
  const auto training = adamw.BeginStep(state, 0, 0.1);
  EXPECT_THAT(MessageOf([&] { Backward(loss); }),
              AllOf(HasSubstr("the forward ran before BeginStep, in evaluation mode"),
                    HasSubstr("Call BeginStep before the forward")));
}

TEST(LoopMistakes, ClippingAfterTheUpdate) {
  AdamW adamw(OneParameter());
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  SetGradient(adamw.parameters()[0]);
  adamw.Step(state);
  EXPECT_THAT(MessageOf([&] { ClipGradNorm(adamw.parameters(), 1, state); }),
              HasSubstr("call it before Step"));
}

TEST(LoopMistakes, ABackwardAfterClipping) {
  AdamW adamw(OneParameter());
  StepState state(kCpu, 1);
  const Tensor& w = adamw.parameters()[0]->value();
  const auto training = adamw.BeginStep(state, 0, 0.1);
  Backward(ops::Sum(w));
  ClipGradNorm(adamw.parameters(), 1, state);
  EXPECT_THAT(MessageOf([&] { Backward(ops::Sum(w)); }),
              AllOf(HasSubstr("would not be clipped"),
                    HasSubstr("Call ClipGradNorm after the last Backward")));
  ClipGradNorm(adamw.parameters(), 1, state);
  adamw.Step(state);
}

// What is forgotten of loss scaling, piece by piece.
TEST(LoopMistakes, LossScaling) {
  AdamW adamw(OneParameter(DType::kF16));
  const std::shared_ptr<Parameter> p = adamw.parameters()[0];
  p->leaf().SetDType(DType::kF32);
  const Tensor& w = p->value();
  StepState state(kCpu, 1);
  EXPECT_THAT(MessageOf([&] { (void)adamw.BeginStep(state, 0, 0.1); }),
              AllOf(HasSubstr("'w' is f16"), HasSubstr("state.EnableLossScaling();")));
  state.EnableLossScaling();
  const auto training = adamw.BeginStep(state, 0, 0.1);
  const auto loss = [&] { return ops::Sum(ops::Cast(w, DType::kF32)); };
  EXPECT_THAT(
      MessageOf([&] { Backward(loss()); }),
      AllOf(HasSubstr("without the loss scale"), HasSubstr("Backward(loss, training.Root());")));
  Backward(loss(), training.Root(0.5));
  EXPECT_EQ(p->grad().Slice(0, 0, 1).Item(), 32768);
  EXPECT_THAT(MessageOf([&] { Backward(loss(), Tensor::Full({}, 65536, DType::kF32)); }),
              HasSubstr("training.Root()"))
      << "a root of the micro-batch before";
  Tensor other = Noise({3}, 1);
  other.SetRequiresGrad();
  Backward(ops::Sum(other));  // of no parameter
  EXPECT_THAT(MessageOf([&] { adamw.Step(state); }),
              AllOf(HasSubstr("must be found before the update"),
                    HasSubstr("optim::ClipGradNorm(optimizer.parameters(), max_norm, state);"),
                    HasSubstr("max_norm = 0")));
  ClipGradNorm(adamw.parameters(), 0, state);
  EXPECT_EQ(state.Read().grad_norm, static_cast<float>(std::sqrt(8.0) / 2)) << "unscaled";
  adamw.Step(state);
  EXPECT_EQ(state.Read().loss_scale, (LossScale{.scale = 65536, .good_steps = 1}));
}

// PyTorch's loop: the scale falls until gradients fit, and nothing else changes meanwhile.
TEST(LossScaling, StepsWithInfiniteGradientsAreSkippedAndCounted) {
  AdamW adamw(OneParameter(DType::kF16));
  const std::shared_ptr<Parameter> p = adamw.parameters()[0];
  StepState state(kCpu, 1);
  state.EnableLossScaling({.growth_interval = 2});
  const auto before = Bits(p->value());
  std::vector<float> scales;
  std::vector<bool> changed;
  for (int64_t step = 0; step < 6; ++step) {
    const auto training = adamw.BeginStep(state, step, 0.1);
    // The gradient, f16, is 10 times the scale: above 65504 at first.
    Backward(ops::Sum(ops::Mul(p->value(), Tensor::Full({8}, 1, DType::kF16))),
             training.Root(10).To(DType::kF16));
    ClipGradNorm(adamw.parameters(), 1, state);
    adamw.Step(state);
    adamw.ZeroGrad();
    scales.push_back(state.Read().loss_scale.scale);
    changed.push_back(Bits(p->value()) != before);
  }
  EXPECT_EQ(scales, (std::vector<float>{32768, 16384, 8192, 4096, 4096, 8192}));
  EXPECT_EQ(changed, (std::vector<bool>{false, false, false, false, true, true}));
  EXPECT_EQ(state.Read().loss_scale.skipped, 4);
}

TEST(LoopMistakes, AnOptimizerThatIsReplacedWithinItsStep) {
  const auto parameters = OneParameter();
  auto adamw = std::make_unique<AdamW>(parameters);
  StepState state(kCpu, 1);
  const auto training = adamw->BeginStep(state, 0, 0.1);
  adamw = std::make_unique<AdamW>(parameters);
  SetGradient(parameters[0]);
  EXPECT_THAT(MessageOf([&] { adamw->Step(state); }), HasSubstr("no step is under way"));
}

// The step of an optimizer that is gone ends in the midst of another's.
TEST(LoopMistakes, AStepThatOutlivesItsOptimizerEndsNoOther) {
  // On a thread of its own, whose scopes end with it.
  std::thread([] {
    const auto parameters = OneParameter();
    StepState state(kCpu, 1);
    auto first = std::make_unique<AdamW>(parameters);
    auto gone = std::make_unique<StepOf>(*first, state);
    first = nullptr;
    AdamW second(parameters);
    const auto training = second.BeginStep(state, 0, 0.1);
    gone = nullptr;
    SetGradient(parameters[0]);
    second.Step(state);
  }).join();
}

// A Backward within another is refused, too.
TEST(LoopMistakes, ABackwardWithinABackwardAfterClipping) {
  AdamW adamw(OneParameter());
  StepState state(kCpu, 1);
  const Tensor& w = adamw.parameters()[0]->value();
  const auto training = adamw.BeginStep(state, 0, 0.1);
  Backward(ops::Sum(w));
  ClipGradNorm(adamw.parameters(), 1, state);
  Tensor x = Tensor::Full({1}, 2, DType::kF32);
  x.SetRequiresGrad();
  Tensor y = ops::Mul(x, x);
  y.RegisterHook([&](const Tensor&) {
    const GradMode record(true);
    Backward(ops::Sum(w));
  });
  EXPECT_THAT(MessageOf([&] { Backward(y); }), HasSubstr("would not be clipped"));
}

TEST(LoopMistakes, AStepWithinAStep) {
  AdamW adamw(OneParameter());
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  EXPECT_THAT(MessageOf([&] { (void)adamw.BeginStep(state, 1, 0.1); }),
              HasSubstr("the step before has not ended"));
}

TEST(LoopMistakes, TwoOptimizersOnOneState) {
  const auto a = OneParameter();
  const auto b = std::vector{MakeParameter("v", Noise({3}, 5), true)};
  AdamW adamw(a);
  Sgd sgd(b);
  StepState state(kCpu, 1), other(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  EXPECT_THAT(MessageOf([&] { (void)sgd.BeginStep(state, 0, 10); }),
              AllOf(HasSubstr("Sgd::BeginStep: this StepState is in a step of AdamW"),
                    HasSubstr("give each optimizer a StepState of its own")));
  EXPECT_EQ(state.Read().lr, 0.1f) << "its learning rate stays";
  EXPECT_THAT(MessageOf([&] { sgd.Step(state); }), HasSubstr("was begun by AdamW"));
  // And clipping with the other's state.
  const auto training_too = sgd.BeginStep(other, 0, 10);
  SetGradient(a[0]);
  SetGradient(b[0]);
  EXPECT_THAT(MessageOf([&] { ClipGradNorm(a, 1, other); }),
              AllOf(HasSubstr("Sgd updates 'v' by this StepState"), HasSubstr("own StepState")));
  auto all = a;
  all.push_back(b[0]);
  ClipGradNorm(all, 1, state);
  ClipGradNorm(all, 1, other);  // the norm of all, for both: as intended
  adamw.Step(state);
  sgd.Step(other);
}

TEST(LoopMistakes, NothingToTrain) {
  const auto parameters = OneParameter();
  parameters[0]->SetTrainable(false);
  AdamW adamw(parameters);
  StepState state(kCpu, 1);
  EXPECT_THAT(MessageOf([&] { (void)adamw.BeginStep(state, 0, 0.1); }),
              AllOf(HasSubstr("of the 1 parameters"), HasSubstr("none was trainable")));
  EXPECT_THAT(MessageOf([&] {
                Sgd sgd(OneParameter());
                const auto training = sgd.BeginStep(state, 0, 0.1);
                sgd.ZeroGrad();
                ClipGradNorm({}, 1, state);
              }),
              HasSubstr("none of the 0 parameters has a gradient"));
}

TEST(LoopMistakes, AParameterThatIsUnfrozenLater) {
  auto parameters = OneParameter();
  parameters.push_back(MakeParameter("late", Noise({3}, 3), true));
  parameters[1]->SetTrainable(false);
  Lion lion(parameters);
  StepState state(kCpu, 1);
  { const auto training = lion.BeginStep(state, 0, 0.1); }
  parameters[1]->SetTrainable(true);
  EXPECT_THAT(MessageOf([&] { (void)lion.BeginStep(state, 1, 0.1); }),
              AllOf(HasSubstr("'late' was frozen when the optimizer was made"),
                    HasSubstr("make the optimizer anew")));
}

// The f32 originals of 16-bit weights would overwrite what was loaded.
template <class O>
void CheckStaleMasters() {
  const auto parameters = OneParameter(DType::kBF16);
  O optimizer(parameters);
  StepState state(kCpu, 1);
  const auto step = [&](int64_t s) {
    const auto training = optimizer.BeginStep(state, s, 0.1);
    SetGradient(parameters[0]);
    optimizer.Step(state);
    optimizer.ZeroGrad();
  };
  step(0);
  step(1);  // the optimizer's own writes do not count
  parameters[0]->value().Detach().CopyFrom(Noise({8}, 9, 1, DType::kBF16));
  const auto loaded = Bits(parameters[0]->value());
  EXPECT_THAT(MessageOf([&] { step(2); }),
              AllOf(HasSubstr("'w' was written since the optimizer"),
                    HasSubstr("make the optimizer after Materialize, after weights are loaded")));
  try {
    optimizer.LoadState(optimizer.NamedState());
    FAIL() << "originals of other weights were taken";
  } catch (const InputError& e) {
    EXPECT_THAT(e.what(), HasSubstr("'w' is not that of its weights"));
  }
  EXPECT_EQ(Bits(parameters[0]->value()), loaded) << "what was loaded is there";
  O anew(parameters);
  const auto training = anew.BeginStep(state, 0, 0.1);
  SetGradient(parameters[0]);
  anew.Step(state);
}

TEST(LoopMistakes, WeightsLoadedAfterTheOptimizerWasMade) {
  CheckStaleMasters<AdamW>();
  CheckStaleMasters<Sgd>();
  CheckStaleMasters<Lion>();
  CheckStaleMasters<Muon>();
  // Without masters the weights are all there is.
  const auto parameters = OneParameter();
  AdamW adamw(parameters);
  parameters[0]->value().Detach().CopyFrom(Noise({8}, 9));
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  SetGradient(parameters[0]);
  adamw.Step(state);
}

TEST(LoopMistakes, MaterialisedAgainIn16Bits) {
  const auto parameters = OneParameter();
  AdamW adamw(parameters);
  parameters[0]->Materialize(kCpu, DType::kBF16, 1);
  StepState state(kCpu, 1);
  EXPECT_THAT(MessageOf([&] { (void)adamw.BeginStep(state, 0, 0.1); }),
              AllOf(HasSubstr("'w' is bf16[8] on cpu, but its state was made for f32"),
                    HasSubstr("make the optimizer after Materialize")));
}

// A forward and backward of dropout on all of w.
Tensor Pass(const std::vector<std::shared_ptr<Parameter>>& parameters) {
  const Tensor y = ops::Dropout(parameters[0]->value(), 0.5, /*site=*/3);
  Backward(ops::Sum(y));
  return y.Detach();
}

TEST(LoopMistakes, MicroBatchesThatWouldShareAMask) {
  const auto parameters = OneParameter();
  AdamW adamw(parameters);
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  const auto first = Bits(Pass(parameters));
  EXPECT_THAT(MessageOf([&] { Pass(parameters); }),
              AllOf(HasSubstr("random numbers (dropout) of the previous one"),
                    HasSubstr("training.SetFirstSample(index of its first sample within the step)"),
                    HasSubstr("const NoGrad no_grad;")));
  training.SetFirstSample(8);
  EXPECT_NE(Bits(Pass(parameters)), first);
}

TEST(LoopMistakes, EvaluationWithinAStepTurnsTrainingOff) {
  const auto parameters = OneParameter();
  AdamW adamw(parameters);
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  const auto value = Bits(parameters[0]->value());
  EXPECT_NE(Bits(ops::Dropout(parameters[0]->value(), 0.5, 3)), value);
  const NoGrad evaluation;
  EXPECT_EQ(Bits(ops::Dropout(parameters[0]->value(), 0.5, 3)), value);
}

TEST(LoopMistakes, AScopeMayOutliveItsState) {
  const auto parameters = OneParameter();
  AdamW adamw(parameters);
  auto state = std::make_unique<StepState>(kCpu, 1);
  const auto training = adamw.BeginStep(*state, 0, 0.1);
  state.reset();
  ops::Dropout(parameters[0]->value(), 0.5, 3);
}

}  // namespace
}  // namespace lockstep::optim
