// What would train on without a word, or leave something untrained: each throws, or warns, and says
// what to write. What a loop may do on purpose passes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/engine.h"
#include "core/autograd/function.h"
#include "kernels/binary/binary.h"
#include "kernels/dropout/dropout.h"
#include "kernels/reduce/reduce.h"
#include "nn/dropout.h"
#include "nn/linear.h"
#include "nn/vision/batch_norm.h"
#include "nn/vision/conv2d.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "tests/message_of.h"
#include "tests/optim/optim_test_util.h"

namespace lockstep::optim {
namespace {

using test::MessageOf;
using testing::AllOf;
using testing::HasSubstr;

std::vector<std::shared_ptr<Parameter>> OneParameter() {
  return {MakeParameter("w", Noise({8}, 1), true)};
}

void Update(Optimizer& optimizer, StepState& state, int64_t step, float gradient = 1) {
  const auto training = optimizer.BeginStep(state, step, 0.1);
  for (const auto& p : optimizer.parameters()) {
    p->leaf().SetGrad(Tensor::Full(p->value().shape(), gradient, DType::kF32));
  }
  ClipGradNorm(optimizer.parameters(), 1, state);
  optimizer.Step(state);
  optimizer.ZeroGrad();
}

// ---- The number of the step ----

// The number of the batch within its epoch, or a number that is never incremented: the same masks
// again, and wrong bias corrections.
TEST(StepNumbers, Grow) {
  Sgd sgd(OneParameter());
  StepState state(kCpu, 1);
  Update(sgd, state, 0);
  Update(sgd, state, 1);
  for (const int64_t step : {1, 0}) {
    EXPECT_THAT(MessageOf([&] { (void)sgd.BeginStep(state, step, 0.1); }),
                AllOf(HasSubstr(StrCat("step ", step, " after the update of 1")),
                      HasSubstr("through all epochs"),
                      HasSubstr("optimizer.BeginStep(state, step++, learning_rate);")));
  }
  for (int i = 0; i < 2; ++i) {  // one that was begun, and not updated, may begin again
    const auto training = sgd.BeginStep(state, 2, 0.1);
  }
  Update(sgd, state, 2);
  Update(sgd, state, 100);
  sgd.LoadState({});  // back to a checkpoint
  Update(sgd, state, 1);
  EXPECT_THAT(MessageOf([&] { (void)sgd.BeginStep(state, 1, 0.1); }), HasSubstr("must grow"));
}

// A run that is continued without its moments, or counted from 1.
TEST(StepNumbers, BeginAtZeroWithEmptyState) {
  AdamW adamw(OneParameter());
  StepState state(kCpu, 1);
  EXPECT_THAT(MessageOf([&] { (void)adamw.BeginStep(state, 7, 0.1); }),
              AllOf(HasSubstr("the first step of a new optimizer is 0, got 7"),
                    HasSubstr("dist::LoadTraining(file, model, optimizer, state);"),
                    HasSubstr("optimizer.BeginStep(state, step - first, schedule(step));")));
  adamw.LoadState(AdamW(OneParameter()).NamedState());
  Update(adamw, state, 7);
  Sgd without_state(OneParameter());
  Update(without_state, state, 7);
}

// ---- Parameters that no optimizer knows ----

struct Model : Layer {
  Tensor Forward(const Tensor& x) override { return fc(x); }
  Child<nn::Linear> fc{this, "fc", 2, 3};
};

void Pass(Layer& model) { Backward(ops::Sum(model(Noise({4, 2}, 3)))); }

TEST(UntrainedParameters, OfAChildThatIsReplacedAfterTheOptimizerWasMade) {
  Model model;
  model.Materialize(kCpu, 1);
  StepState state(kCpu, 1);
  AdamW adamw(model.Parameters());
  const auto other = std::make_shared<nn::Linear>(2, 3);
  model.ReplaceChild("fc", other);
  other->Materialize(kCpu, 2);
  {
    const auto training = adamw.BeginStep(state, 0, 0.1);
    EXPECT_THAT(MessageOf([&] { Pass(model); }),
                AllOf(HasSubstr("'fc.weight' gets a gradient, but no optimizer updates it"),
                      HasSubstr("make the optimizer after ReplaceChild"),
                      HasSubstr("parameter->SetTrainable(false);")));
  }
  AdamW anew(model.Parameters());
  const auto training = anew.BeginStep(state, 0, 0.1);
  Pass(model);
}

TEST(UntrainedParameters, OfAMemberThatIsNoChild) {
  struct Plain : Layer {
    Tensor Forward(const Tensor& x) override { return head(fc(x)); }
    nn::Linear fc{2, 3};
    Child<nn::Linear> head{this, "head", 3, 1};
  } model;
  model.Materialize(kCpu, 1);
  EXPECT_THAT(MessageOf([&] { Pass(model); }),
              AllOf(HasSubstr("on meta"), HasSubstr("(in a lockstep::nn::Linear)"),
                    HasSubstr("call Materialize(device, seed) on the model"),
                    HasSubstr("Child<nn::Linear> fc{this, \"fc\", 2, 3};")));
  model.fc.Materialize(kCpu, 1);
  AdamW adamw(model.Parameters());
  StepState state(kCpu, 1);
  const auto training = adamw.BeginStep(state, 0, 0.1);
  EXPECT_THAT(MessageOf([&] { Pass(model); }),
              AllOf(HasSubstr("'weight' gets a gradient, but no optimizer updates it"),
                    HasSubstr("Child<nn::Linear> fc{this, \"fc\", 2, 3};")));
  model.fc.weight()->SetTrainable(false);
  model.fc.bias()->SetTrainable(false);
  Pass(model);
}

// As a generative adversarial network is trained: a step of one through the other.
TEST(UntrainedParameters, AnotherOptimizersAreItsBusiness) {
  Model generator;
  nn::Linear critic(3, 1);
  generator.Materialize(kCpu, 1);
  critic.Materialize(kCpu, 2);
  AdamW of_generator(generator.Parameters());
  auto of_critic = std::make_unique<AdamW>(critic.Parameters());
  StepState state(kCpu, 1);
  const auto training = of_generator.BeginStep(state, 0, 0.1);
  const auto pass = [&] { Backward(ops::Sum(critic(generator(Noise({4, 2}, 3))))); };
  pass();
  of_critic = nullptr;
  EXPECT_THAT(MessageOf(pass), HasSubstr("no optimizer updates it"));
  Tensor input = Noise({4, 2}, 4);  // no parameter: whoever asks for its gradient reads it
  input.SetRequiresGrad();
  Backward(ops::Sum(generator(input)));
  EXPECT_TRUE(input.grad().defined());
}

// ---- Loops without a step ----

template <class M, class... Args>
void CheckLoopWithoutAStep(Shape shape, Args&&... args) {
  M layer(std::forward<Args>(args)...);
  layer.Materialize(kCpu, 1);
  Tensor w = Noise(shape, 1);
  w.SetRequiresGrad();
  const auto loss = [&] { return ops::Sum(layer(w * w)); };
  EXPECT_THAT(MessageOf([&] { Backward(loss()); }),
              AllOf(HasSubstr("in evaluation mode, without dropout"),
                    HasSubstr("optimizer.BeginStep(state, step, learning_rate);"),
                    HasSubstr("const TrainingScope training(state);"),
                    HasSubstr("Backward(loss, {}, {.evaluation = true});")));
  Backward(loss(), {}, {.evaluation = true});
  Backward(ops::Sum(w * w));  // what was said of one forward does not stick to others
  {
    const NoGrad no_grad;
    loss();
  }
  Backward(ops::Sum(w * w));
  StepState state(kCpu, 1);
  state.Begin(0, 0.1);
  const TrainingScope training(state);
  Backward(loss());
}

TEST(LoopWithoutAStep, LeavesOutWhatBelongsToTraining) {
  CheckLoopWithoutAStep<nn::Dropout>({8}, 0.5);
  CheckLoopWithoutAStep<nn::Dropout2d>({2, 3}, 0.5);
  CheckLoopWithoutAStep<nn::BatchNorm1d>({4, 3}, 3);
}

TEST(LoopWithoutAStep, OfAFunction) {
  Tensor w = Noise({8}, 1);
  w.SetRequiresGrad();
  EXPECT_THAT(MessageOf([&] { Backward(ops::Sum(ops::Dropout(w, 0.5, /*site=*/3))); }),
              HasSubstr("in evaluation mode"));
  Backward(ops::Sum(ops::Dropout(w, 0, /*site=*/3)));
  // Of features that need no gradient, before what is trained.
  const Tensor features = ops::Dropout(Noise({8}, 2), 0.5, /*site=*/3);
  EXPECT_THAT(MessageOf([&] { Backward(ops::Sum(features * w)); }),
              HasSubstr("in evaluation mode"));
}

// Also through what is frozen between, of whatever kind, up to what is trained.
TEST(LoopWithoutAStep, OfFrozenLayers) {
  nn::Linear frozen(8, 8);
  nn::Conv2d conv(2, 2, 1);
  frozen.Materialize(kCpu, 1);
  conv.Materialize(kCpu, 1);
  for (Module* module : {static_cast<Module*>(&frozen), static_cast<Module*>(&conv)}) {
    for (const auto& p : module->Parameters()) p->SetTrainable(false);
  }
  Tensor w = Noise({8}, 1);
  w.SetRequiresGrad();
  const ops::Function twice(
      "twice", [](ops::Saved&, const Tensor& x) { return x + x; },
      [](const ops::Saved&, const Tensor& dy) { return dy + dy; });
  const auto dropped = [](const Shape& shape) {
    return ops::Dropout(Noise(shape, 2), 0.5, /*site=*/3);
  };
  const auto error = [&](const Tensor& features) {
    return MessageOf([&] { Backward(ops::Sum(features * w)); });
  };
  EXPECT_THAT(error(frozen(dropped({4, 8}))), HasSubstr("in evaluation mode"));
  EXPECT_THAT(error(conv(dropped({1, 2, 2, 2})).View({8})), HasSubstr("in evaluation mode"));
  EXPECT_THAT(error(twice(dropped({8}))), HasSubstr("in evaluation mode"));
}

// A teacher may be evaluated ahead of the step of what learns from it.
TEST(LoopWithoutAStep, ATeacherWithoutGradientsMayBeEvaluatedBeforeTheStep) {
  Sgd sgd(OneParameter());
  StepState state(kCpu, 1);
  const Tensor& w = sgd.parameters()[0]->value();
  const Tensor target = ops::Dropout(Noise(w.shape(), 2), 0.5, /*site=*/3);
  const auto training = sgd.BeginStep(state, 0, 0.1);
  Backward(ops::Sum((w - target) * (w - target)));
}

// What was evaluated elsewhere says nothing of this loss: another model's forward that recorded, in
// or out of steps, before, between or after the parts of the graph that Backward goes through.
TEST(LoopWithoutAStep, OtherModelsMayBeEvaluated) {
  nn::Dropout dropout(0.5);
  Tensor v = Noise({8}, 1), w = Noise({8}, 2);
  v.SetRequiresGrad();
  w.SetRequiresGrad();
  (void)dropout(v * v);  // nothing comes after it
  Backward(ops::Sum(w * w));
  const auto evaluate = [&] { (void)ops::Sum(dropout(v * v)).Item(); };
  evaluate();
  Backward(ops::Sum(w * w));
  const Tensor part = w * w;
  evaluate();
  Backward(ops::Sum(part * w));
  const Tensor loss = ops::Sum(w * w);
  evaluate();
  Backward(loss);
  EXPECT_THAT(MessageOf([&] { Backward(ops::Sum(dropout(v * v))); }),
              HasSubstr("in evaluation mode"));
  Backward(ops::Sum(w * w));
  // The other way round: what a model without dropout did before evaluation is not forgotten.
  const Tensor evaluated = ops::Sum(dropout(v * v));
  Backward(ops::Sum(w * w));
  EXPECT_THAT(MessageOf([&] { Backward(evaluated); }), HasSubstr("in evaluation mode"));
}

// A forward ahead of its step is right where nothing in it depends on there being one.
TEST(LoopWithoutAStep, AForwardBeforeItsStepMayHaveNoDropout) {
  Sgd sgd(OneParameter());
  StepState state(kCpu, 1);
  nn::Dropout dropout(0.5);
  const Tensor& w = sgd.parameters()[0]->value();
  for (int64_t step = 0; step < 2; ++step) {
    (void)ops::Sum(dropout(w * w)).Item();  // an evaluation
    const Tensor loss = ops::Sum(w * w), evaluated = ops::Sum(dropout(w * w));
    const auto training = sgd.BeginStep(state, step, 0.1);
    EXPECT_THAT(MessageOf([&] { Backward(evaluated); }),
                HasSubstr("the forward ran before BeginStep, in evaluation mode"));
    Backward(loss);
    Backward(evaluated, {}, {.evaluation = true});
    sgd.Step(state);
    sgd.ZeroGrad();
  }
}

// ---- Updates that are left out ----

TEST(SkippedUpdates, AreWarnedOf) {
  AdamW adamw(OneParameter());
  StepState state(kCpu, 1);
  const auto train = [&](int64_t begin, int64_t end, float gradient) {
    testing::internal::CaptureStderr();
    for (int64_t step = begin; step < end; ++step) Update(adamw, state, step, gradient);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(train(0, 3, 1), "");
  EXPECT_EQ(train(3, 4, std::nanf("")), "");
  EXPECT_THAT(train(4, 5, 1), AllOf(HasSubstr("warning: AdamW left out the update of step 3"),
                                    HasSubstr("so far 1 update(s)"), HasSubstr("found_inf")));
  const std::string many = train(5, 25, HUGE_VALF);
  EXPECT_EQ(std::count(many.begin(), many.end(), '\n'), 4) << "at the 2nd, 4th, 8th and 16th";
  EXPECT_THAT(many, HasSubstr("so far 16 update(s)"));
  EXPECT_EQ(state.Read().found_inf, 1);
  EXPECT_EQ(train(25, 30, 1), "") << "the loop has looked";
}

}  // namespace
}  // namespace lockstep::optim
