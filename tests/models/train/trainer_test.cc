#include "models/train/step/trainer.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "optim/adamw.h"
#include "tests/message_of.h"
#include "tests/models/training.h"

namespace lockstep::models {
namespace {

// A small GPT with everything that training needs.
struct Bench {
  explicit Bench(int64_t batch_size, int64_t accum, double dropout = 0, int64_t first_step = 0)
      : tokens(Tokens(300)), model(SmallGpt(dropout)) {
    model.Materialize(kCpu, 4);
    optimizer = std::make_unique<optim::AdamW>(model.Parameters());
    loader = std::make_unique<data::Loader>(
        tokens, Shuffled(*tokens),
        data::BatchLayout{.batch_size = batch_size, .micro_batches = accum}, first_step);
    trainer = std::make_unique<Trainer>(
        model, *optimizer, SmallSchedule(), *loader,
        TrainerOptions{.first_step = first_step, .micro_batches = accum, .seed = 9});
  }

  std::shared_ptr<const data::TokenSource> tokens;
  Gpt model;
  std::unique_ptr<optim::AdamW> optimizer;
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<Trainer> trainer;
};

class Accumulation : public testing::TestWithParam<double> {};

// The mean over the step's tokens, even with dropout, does not depend on how micro-steps divide
// them.
TEST_P(Accumulation, GivesTheSameStepsUpToRounding) {
  Bench whole(8, 1, GetParam()), halves(4, 2, GetParam()), single(1, 8, GetParam());
  for (int i = 0; i < 5; ++i) {
    const StepMetrics a = whole.trainer->Step();
    for (Bench* other : {&halves, &single}) {
      const StepMetrics b = other->trainer->Step();
      EXPECT_NEAR(a.loss, b.loss, 1e-5) << i;
      EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-4 * a.grad_norm) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dropout, Accumulation, testing::Values(0.0, 0.3));

TEST(Trainer, LearnsItsData) {
  Bench s(8, 1);
  const double first = s.trainer->Step().loss;
  EXPECT_NEAR(first, std::log(13.0), 0.1);
  double last = 0;
  while (s.trainer->step() < 150) last = s.trainer->Step().loss;
  EXPECT_LT(last, 0.6 * first);
}

TEST(Trainer, ReportsTheStepAsItWas) {
  Bench s(4, 2);
  const StepMetrics m = s.trainer->Step();
  EXPECT_EQ(m.step, 1);
  EXPECT_EQ(s.trainer->step(), 1);
  EXPECT_DOUBLE_EQ(m.lr, 1e-2 / 3);  // the first of two warm-up steps
  EXPECT_GT(m.grad_norm, 0);
  EXPECT_GT(m.tokens_per_second, 0);
}

// The breakdown leaves no gaps: its parts add up to the step, and the step to what a clock
// measures.
TEST(Trainer, TheTimesOfAStepAddUp) {
  Bench s(4, 2);
  double inside = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) {
    const StepMetrics m = s.trainer->Step();
    inside += m.ms;
    EXPECT_EQ(m.times.total(), m.ms);
    const StepTimes& t = m.times;
    for (const double part : {t.data_ms, t.forward_ms, t.backward_ms, t.update_ms}) {
      EXPECT_GT(part, 0);
    }
  }
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
  EXPECT_LE(inside, passed.count());
  EXPECT_GT(inside, 0.5 * passed.count());
}

TEST(Trainer, EvaluationIsExactWhateverTheBatch) {
  Bench s(4, 1, /*dropout=*/0.5);
  s.trainer->Step();
  const auto evaluate = [&](int64_t batch) {
    return s.trainer->Evaluate(data::EvalBatches(s.tokens, kWindow, batch));
  };
  const double one = evaluate(1);
  EXPECT_NEAR(one, evaluate(5), 1e-6);
  EXPECT_NEAR(one, evaluate(64), 1e-6);
  EXPECT_EQ(one, evaluate(1));  // no dropout
}

TEST(Trainer, ANonFiniteGradientIsNamedAndNothingChanges) {
  Bench s(4, 1);
  s.trainer->Step();
  Parameter& poisoned = *s.model.NamedParameters().back().second;  // ln_f.bias: logits become NaN
  poisoned.value().Detach().Fill(NAN);
  const std::vector<float> before = WeightsOf(s.model);
  try {
    s.trainer->Step();
    FAIL() << "no error";
  } catch (const NonFiniteError& e) {
    EXPECT_THAT(e.what(), testing::AllOf(testing::HasSubstr("step 2: the loss is nan"),
                                         testing::HasSubstr("the gradient of 'wte.weight'"),
                                         testing::HasSubstr("The weight 'ln_f.bias' was not")));
    EXPECT_THAT(e.what(), testing::Not(testing::HasSubstr("Lower optim.lr")));
  }
  EXPECT_EQ(s.trainer->step(), 1);
  const std::vector<float> after = WeightsOf(s.model);
  ASSERT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(float)), 0);
}

TEST(Trainer, AScaleThatIsNeverLoweredIsNotTheFaultForEver) {
  const auto tokens = Tokens(300);
  Gpt model(SmallGpt(0));
  model.Materialize(kCpu, 4, DType::kF16);
  optim::AdamW adamw(model.Parameters());
  data::Loader loader(tokens, Shuffled(*tokens), {.batch_size = 2, .micro_batches = 1});
  Trainer trainer(model, adamw, SmallSchedule(), loader,
                  {.max_skips = 2, .loss_scaling = LossScaleOptions{.init = 0x1p40, .backoff = 1}});
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(trainer.Step().skipped) << "by the scale's fault";
  const std::string message = test::MessageOf<NonFiniteError>([&] { trainer.Step(); });
  EXPECT_THAT(message, testing::HasSubstr("Lower optim.lr"));
}

// A loop with the guard, whose range is so narrow that it leaves out every other step.
struct GuardedRun {
  explicit GuardedRun(int64_t steps, bool pipelined = false) : bench(4, 2, /*dropout=*/0.1) {
    trainer.emplace(bench.model, *bench.optimizer, SmallSchedule(), *bench.loader,
                    TrainerOptions{.micro_batches = 2, .seed = 9, .spike = 0.01});
    const auto note = [&](const std::optional<StepMetrics>& m) {
      if (!m) return;
      EXPECT_FALSE(m->skipped);
      spikes.push_back(m->spike);
    };
    while (trainer->step() < steps) pipelined ? note(trainer->Submit()) : note(trainer->Step());
    note(trainer->Finish());
  }
  Bench bench;
  std::optional<Trainer> trainer;
  std::vector<bool> spikes;
};

TEST(Trainer, SkipsSpikes) {
  GuardedRun run(100);
  const auto first = std::ranges::find(run.spikes, true) - run.spikes.begin();
  EXPECT_GE(first, 64) << "nothing is known before";
  EXPECT_GT(std::ranges::count(run.spikes, true), 5);
  EXPECT_LT(std::ranges::count(run.spikes, true), 36);
  GuardedRun before(first), after(first + 1);
  EXPECT_EQ(WeightsOf(before.bench.model), WeightsOf(after.bench.model));
  // The host learns of a step while the next one is under way: it decides the same.
  GuardedRun pipelined(100, /*pipelined=*/true);
  EXPECT_EQ(pipelined.spikes, run.spikes);
  EXPECT_EQ(WeightsOf(pipelined.bench.model), WeightsOf(run.bench.model));
  EXPECT_EQ(*pipelined.trainer->spike_history(), *run.trainer->spike_history());
}

TEST(Trainer, RefusesALoaderAtAnotherStep) {
  Bench s(4, 1);
  data::Loader elsewhere(s.tokens, Shuffled(*s.tokens), {.batch_size = 4}, /*start_step=*/5);
  Trainer trainer(s.model, *s.optimizer, optim::LrSchedule({.lr = 1e-2, .decay_steps = 20}),
                  elsewhere, {});
  EXPECT_THROW(trainer.Step(), Error);
}

}  // namespace
}  // namespace lockstep::models
