#include "models/train/budget/run_budget.h"

#include <fmt/format.h>

#include <chrono>

#include "core/io/file.h"
#include "core/thread_pool.h"
#include "data/tokenizer/text_bytes.h"
#include "dist/launch/rank_device.h"
#include "models/options/depth_laws.h"
#include "models/report/format.h"
#include "models/report/run_progress.h"
#include "models/train/budget/measured_steps.h"
#include "models/train/run_ranks.h"
#include "models/train/run_setup.h"

namespace lockstep::models {
namespace {

// Of a time, what is expected to be left for steps. Starting, evaluating and saving take the rest.
constexpr double kShareOfTraining = 0.9;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The fastest of some steps of a model of this depth.
Speed MeasureSpeed(int64_t depth, int64_t vocab_size, const RunConfig& given, Device device) {
  const std::string precision = given.train.precision == "fp16" ? "bf16" : given.train.precision;
  const MeasuredSteps steps =
      MeasureSteps({StrCat("--depth=", depth), StrCat("--model.vocab_size=", vocab_size),
                    StrCat("--train.precision=", precision)},
                   device, /*watches=*/false);
  const double flops = FlopsPerTokenOf(depth, vocab_size);
  const auto tokens = static_cast<double>(steps.setup.tokens_per_step);
  return {.flops_per_token = flops, .flops_per_second = flops * tokens / steps.seconds};
}

// Of text, by part of the data that is held out, else of what is trained on.
double BytesPerToken(const RunSetup& setup) {
  constexpr int64_t kRows = 16;
  const auto& source = setup.dataset.val ? setup.dataset.val : setup.dataset.train;
  if (!setup.dataset.tokenizer || source->size() < 2) return 1;
  const data::EvalBatches batches(source, setup.window(), kRows, /*max_batches=*/4);
  return static_cast<double>(data::CountBytes(batches, *setup.dataset.tokenizer)) /
         static_cast<double>(batches.num_targets());
}

// What decides the size and the length of a run: by the clock, if the budget is a time.
std::vector<std::string> ArgumentsOf(const Budget& budget, int64_t depth, int64_t rows,
                                     int64_t steps) {
  const bool by_clock = budget.unit == Budget::Unit::kSeconds;
  return {StrCat("--depth=", depth), StrCat("--train.global_batch_size=", rows),
          by_clock ? fmt::format("--train.time_budget={:.0f}s", budget.amount)
                   : StrCat("--train.steps=", steps)};
}

void PrintChoice(const Choice& c, bool chosen) {
  Print(fmt::format("  depth {}: {} steps of {} tokens, {:.2f} epochs{}, expected loss {:.2f}{}",
                    c.depth, c.steps, FormatCount(static_cast<double>(c.batch)), c.epochs,
                    c.seconds > 0 ? StrCat(", ", FormatDuration(c.seconds)) : "", c.expected_loss,
                    chosen ? " (chosen)" : ""));
}

}  // namespace

std::vector<std::string> ChooseRun(const Budget& budget, const Options& options,
                                   const RunConfig& config) {
  const auto start = Clock::now();
  for (const char* key :
       {"depth", "model.preset", "init_from", "train.steps", "train.epochs",
        "train.tokens_per_parameter", "train.time_budget", "train.global_batch_size"}) {
    if (!options.IsWritten(key)) continue;
    options.Fail({key}, StrCat(options.Describe(key), " and --budget both decide what is trained, ",
                               "or for how long: leave one of them out"));
  }
  if (const std::string file = JoinPath(config.out_dir, "config.toml"); PathExists(file)) {
    const RunConfig there = RunConfigFromToml(ReadFile(file), file);
    if (there.depth == 0) {
      throw InputError(StrCat(config.out_dir, " holds a run that --budget has not chosen: use ",
                              "another --out_dir="));
    }
    Print(StrCat("going on with the run in ", config.out_dir, ", of depth ", there.depth));
    return ArgumentsOf(budget, there.depth, there.train.global_batch_size, there.train.steps);
  }
  const dist::Rendezvous rendezvous = dist::ReadRendezvous();
  if (rendezvous.world_size > 1) {
    throw InputError("--budget measures a single process: use --depth=N with several ranks");
  }
  const Device device = dist::DeviceOfRank(config.device, rendezvous);
  SetNumThreads(ThreadsOf(config, rendezvous));
  const RunSetup setup = PrepareRun(options, config, {}, device, /*processes=*/1);
  Means means{.tokens = static_cast<double>(setup.dataset.train->size()),
              .vocab_size = setup.model.vocab_size,
              .bytes_per_token = BytesPerToken(setup)};
  Print("measuring this machine for some seconds");
  for (const int64_t depth : MeasuredDepths(device)) {
    means.speeds.push_back(MeasureSpeed(depth, means.vocab_size, config, device));
    Print(fmt::format(
        "  depth {}: {:.1f} GFLOP/s, {} tokens a second", depth,
        1e-9 * means.speeds.back().flops_per_second,
        FormatCount(means.speeds.back().flops_per_second / means.speeds.back().flops_per_token)));
  }
  Budget training = budget;
  if (budget.unit == Budget::Unit::kSeconds) {
    training.amount = kShareOfTraining * budget.amount - SecondsSince(start);
  }
  const std::vector<Choice> choices = ChooseFor(training, means);
  for (const Choice& choice : choices) PrintChoice(choice, &choice == &choices.front());
  const Choice& best = choices.front();
  return ArgumentsOf(budget, best.depth, best.batch / ContextOfDepth(best.depth), best.steps);
}

}  // namespace lockstep::models
