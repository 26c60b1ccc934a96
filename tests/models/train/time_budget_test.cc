// Runs with a time, played by a clock of the test's own: they end within a tenth of it.
#include "models/train/budget/time_budget.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <random>
#include <string>

namespace lockstep::models {
namespace {

// How long things take on a machine.
struct Machine {
  double start = 0.5;                                // until the first step
  std::function<double(double now, double u)> step;  // u: a random number in [0, 1)
  double evaluation = 0, checkpoint = 0, end = 0.1;  // of a checkpoint: what the run waits for
  int64_t ask_every = 1;                             // steps, as on GPUs
};

struct Life {
  int64_t decay_start = 0, steps = 0;
  double seconds = 0;  // when it ended
};

// As TrainingLoop does it, from `now` and `step` on.
Life Play(const TimeBudgetOptions& options, const Machine& machine, double now = 0,
          int64_t step = 0) {
  TimeBudget budget(options);
  std::mt19937 random(7);
  Life life;
  const auto due = [&](Pause pause) {
    const int64_t every = options.every[static_cast<size_t>(pause)];
    return every > 0 && step % every == 0;
  };
  const auto evaluate = [&] {
    now += machine.evaluation;
    budget.AddPause(Pause::kEvaluation, machine.evaluation);
  };
  const auto save = [&] {
    now += machine.checkpoint;
    budget.AddPause(Pause::kCheckpoint, machine.checkpoint);
    budget.AddSave(machine.checkpoint);
  };
  now += machine.start;
  while (life.steps == 0 || step < life.steps) {
    now += machine.step(now, static_cast<double>(random()) / 4294967296.0);
    ++step;
    if (step % machine.ask_every == 0) {
      budget.Add(now, step);
      if (life.steps == 0) {
        life.steps = budget.BeginDecay().value_or(0);
        if (life.steps > 0) life.decay_start = step;
      }
    }
    if (step == life.steps) break;
    if (due(Pause::kEvaluation)) evaluate();
    if (due(Pause::kCheckpoint) || step == life.decay_start) save();
  }
  evaluate();
  save();
  life.seconds = now + machine.end;
  return life;
}

Machine Steady(double seconds) {
  return {.step = [=](double, double) { return seconds; }};
}

void ExpectWithinATenth(const Life& life, double seconds, const std::string& of) {
  EXPECT_GT(life.seconds, 0.9 * seconds) << of;
  EXPECT_LT(life.seconds, 1.1 * seconds) << of;
  EXPECT_GT(life.steps, life.decay_start) << of;
}

TEST(TimeBudget, ASteadyMachine) {
  for (const double seconds : {60.0, 600.0, 7200.0}) {
    for (const double step : {0.02, 0.1, 1.3}) {
      for (const double decay : {0.1, 0.2, 0.4, 0.65}) {
        const Life life = Play({.seconds = seconds, .decay_fraction = decay}, Steady(step));
        const std::string of = testing::PrintToString(std::tuple(seconds, step, decay));
        ExpectWithinATenth(life, seconds, of);
        EXPECT_NEAR(life.seconds, 0.98 * seconds, step + 0.3) << of;
        const auto steps = static_cast<double>(life.steps);
        EXPECT_NEAR(static_cast<double>(life.steps - life.decay_start), decay * steps, 2) << of;
      }
    }
  }
}

TEST(TimeBudget, AStepTakesAFifthOfIt) {
  const Life life = Play({.seconds = 100, .decay_fraction = 0.2}, Steady(19));
  EXPECT_EQ(life.steps, 5);
  EXPECT_EQ(life.decay_start, 4);
}

// Evaluations and checkpoints count, also the last ones; so do those that no step has shown yet.
TEST(TimeBudget, ForeseesPauses) {
  Machine machine = Steady(0.05);
  machine.evaluation = 6;
  machine.checkpoint = 2.5;
  machine.end = 1;
  for (const int64_t every : {250, 1000, 1900, 4000}) {
    const TimeBudgetOptions options{.seconds = 300,
                                    .decay_fraction = 0.3,
                                    .every = {every, 0, 0, every},
                                    .steps = {90, 0, 0, 0},
                                    .save_seconds = 2};
    const Life life = Play(options, machine);
    ExpectWithinATenth(life, 300, "every " + std::to_string(every));
    // One of them.
    if (every < 4000) {
      EXPECT_NEAR(life.seconds, 294, 6) << "every " << every;
    }
  }
}

// Steps of changing length: at random, in bursts of another program, in waves, and for good.
TEST(TimeBudget, ABusyMachine) {
  const double kSeconds = 600;
  const std::vector<std::pair<std::string, std::function<double(double, double)>>> kinds = {
      {"random", [](double, double u) { return 0.03 - 0.02 * std::log(1 - u); }},
      {"seldom very slow", [](double, double u) { return u < 0.002 ? 2.5 : 0.03; }},
      {"bursts of 20 s",
       [](double now, double u) {
         return (std::fmod(now, 60) < 20 ? 0.1 : 0.04) * (0.8 + 0.4 * u);
       }},
      {"slower from half of it on", [](double now, double) { return now < 300 ? 0.04 : 0.06; }},
      {"faster from half of it on", [](double now, double) { return now < 300 ? 0.07 : 0.04; }},
      {"slower all the time", [](double now, double) { return 0.03 * (1 + now / 600); }},
      {"slower at first, and stuck at the start",
       [](double now, double) { return now < 2    ? 20
                                       : now < 60 ? 0.3
                                                  : 0.04; }},
      {"as by day and night",
       [](double now, double) {
         return 0.05 * (1 + 0.3 * std::sin(2 * std::numbers::pi * now / 300));
       }},
  };
  for (const auto& [name, step] : kinds) {
    for (const double decay : {0.1, 0.2, 0.3}) {
      for (const int64_t ask_every : {1, 40}) {
        Machine machine{.step = step, .evaluation = 2, .checkpoint = 0.3};
        machine.ask_every = ask_every;
        const Life life = Play({.seconds = kSeconds,
                                .decay_fraction = decay,
                                .every = {1000, 0, 0, 1000},
                                .steps = {30, 0, 0, 0}},
                               machine);
        ExpectWithinATenth(life, kSeconds, name + ", decay " + std::to_string(decay));
      }
    }
  }
}

// What DecaySlack promises.
TEST(TimeBudget, AMachineThatIsSlowerInTheDecay) {
  EXPECT_NEAR(DecaySlack(0.2), 0.6, 1e-9);
  for (const double decay : {0.1, 0.2, 0.4, 0.65}) {
    const TimeBudgetOptions options{.seconds = 1000, .decay_fraction = decay};
    const double begin = Play(options, Steady(0.05)).decay_start * 0.05 + 0.5;
    for (const double slower : {0.95, 1.05}) {
      const Life life = Play(options, {.step = [&](double now, double) {
                               return now < begin ? 0.05 : 0.05 * (1 + slower * DecaySlack(decay));
                             }});
      EXPECT_EQ(life.seconds < 1100, slower < 1) << decay << " " << life.seconds;
    }
  }
}

// A run that was killed has the time that is left.
TEST(TimeBudget, AnInterruptedRun) {
  const TimeBudgetOptions options{.seconds = 200, .decay_fraction = 0.2};
  const Life life = Play(options, Steady(0.05), /*now=*/120, /*step=*/2000);
  ExpectWithinATenth(life, 200, "");
  EXPECT_GT(life.steps, 3400);
  // If that is less than the decay would have taken, it begins at once; if nothing is left, it
  // ends.
  const Life late = Play(options, Steady(0.05), /*now=*/180, /*step=*/3600);
  EXPECT_LE(late.decay_start, 3602);
  ExpectWithinATenth(late, 200, "");
  const Life over = Play(options, Steady(0.05), /*now=*/230, /*step=*/4000);
  EXPECT_EQ(over.decay_start, 4001);
  EXPECT_EQ(over.steps, 4002);
}

TEST(TimeBudget, SaysWhatIsLeft) {
  TimeBudget budget({.seconds = 100, .decay_fraction = 0.2});
  budget.Add(2, 1);
  EXPECT_FALSE(budget.LastStep().has_value());
  budget.Add(3, 2);
  EXPECT_EQ(budget.SecondsLeft(), 97);
  ASSERT_TRUE(budget.LastStep().has_value());
  EXPECT_EQ(*budget.LastStep(), 96);  // at 97 s, and 0.2 s for the rest
  EXPECT_NEAR(budget.SecondsTo(52, /*begins_decay=*/true), 50.2, 1e-9);
  EXPECT_FALSE(budget.BeginDecay().has_value());
}

}  // namespace
}  // namespace lockstep::models
