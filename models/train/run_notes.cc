#include "models/train/run_notes.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/io/file.h"
#include "core/system/shell_word.h"
#include "data/text/text_files.h"
#include "data/token_shards.h"
#include "models/checkpoint/checkpoint.h"
#include "models/train/budget/time_budget.h"
#include "models/train/run_data.h"
#include "models/train/run_model.h"

namespace lockstep::models {

std::string NoteOnPlan(const RunSetup& setup) {
  const ParallelOptions& parallel = setup.config.parallel;
  if (parallel.shard != "none" && setup.data_ranks == 1) {
    return StrCat("parallel.shard = \"", parallel.shard,
                  "\" shards nothing in a single process: start several, as with --nproc=4");
  }
  const bool is_later = parallel.schedule == "zb_h1" || parallel.schedule == "zbv";
  if (parallel.pp == 1 || !is_later || parallel.context_pairs() == 1) return "";
  return StrCat(
      "parallel.schedule = \"", parallel.schedule,
      "\" defers no products where sequences are cut (parallel.cp or virtual.cp), only the "
      "sums over their chunks, which take memory until then: use \"",
      parallel.schedule == "zbv" ? "interleaved" : "1f1b", "\", with the same weights");
}

namespace {

std::string NoteOnSplits(const DataOptions& options) {
  for (const std::string& path : SourcesOf(options)) {
    // The names of token files do split them.
    if (path.empty() || path == "-" || data::HoldsTokenFiles(path)) continue;
    const std::vector<std::string> files = data::ListTextFiles(std::vector{path});
    const std::vector<data::Split> splits = data::SplitsOf(files);
    const auto held_out = std::ranges::find(splits, data::Split::kVal) - splits.begin();
    const bool trains = std::ranges::count(splits, data::Split::kTrain) > 0;
    if (held_out == std::ssize(splits) || !trains) continue;
    const bool by_name = data::SplitOfFileName(files[held_out]) == data::Split::kVal;
    const std::string pattern = JoinPath(ParentPath(files[held_out]), "*train*");
    return StrCat(path, ": ", files[held_out], " is trained on with the others, whatever its path ",
                  "says: of texts, data.val_fraction is held out. Name only what is for training",
                  by_name ? StrCat(", as with --data.path='", pattern, "'") : "");
  }
  return "";
}

std::string NoteOnDecay(const Options& options, const RunSetup& setup) {
  const optim::LrSchedule schedule = MakeSchedule(setup.config);
  const int64_t begin = setup.start.step;  // the update after `step` has schedule(step)
  if (begin >= setup.steps()) return "";
  const auto rate = [](double lr) { return fmt::format("{:.1e}", lr); };
  if (setup.start.checkpoint) {
    const double before = ReadTrainerState(*setup.start.checkpoint).lr.value_or(schedule(begin));
    const double now = schedule(begin);
    if (now > 2 * before && now > 0.01 * setup.config.optim.lr) {
      return StrCat("the learning rate was ", rate(before), " at step ", begin, " and is ",
                    rate(now), " now, as if the run had been this long from the start: ",
                    "for an even, small one use --optim.schedule=constant --optim.lr=",
                    rate(0.1 * setup.config.optim.lr), "; for a warm-up and a decay of its own ",
                    "begin anew from the weights, --init_from=", ShellWord(*setup.start.checkpoint),
                    " with another out_dir");
    }
  }
  const double last = schedule(setup.steps() - 1), end = schedule(setup.config.optim.decay_steps);
  if (setup.config.optim.decay_steps > setup.steps() && last > 2 * end) {
    return StrCat(options.Describe("optim.decay_steps"), ", so that the learning rate is still ",
                  rate(last), " when this run of ", setup.steps(),
                  " steps ends: with --optim.decay_steps=0 it decays to the end of the run");
  }
  return "";
}

// Muennighoff et al., "Scaling data-constrained language models" (2023): four passes are nearly as
// good as new data, and beyond them each is worth less.
std::string NoteOnRepeats(const RunSetup& setup) {
  constexpr double kWorthwhile = 4;
  const double ratio = setup.config.train.tokens_per_parameter;
  const auto tokens =
      static_cast<double>(setup.SamplesBefore(setup.steps()) * setup.sample_tokens());
  const double epochs = tokens / static_cast<double>(setup.dataset.train->size());
  if (ratio == 0 || epochs <= kWorthwhile) return "";
  return fmt::format(
      "train.tokens_per_parameter = {:.3g} makes {:.1f} passes over the data, of which those after "
      "the fourth teach less and less: a smaller model, such as of a lower --depth, or more text "
      "makes better use of the time, and --train.epochs={:.0f} ends before",
      ratio, epochs, kWorthwhile);
}

std::string NoteOnTime(const Options& options, const RunSetup& setup) {
  constexpr double kSmall = 0.3;  // of the time of a step, which a busy machine soon adds
  const double slack = DecaySlack(setup.config.optim.decay_fraction);
  if (!setup.config.train.is_open() || slack >= kSmall) return "";
  if (!options.IsWritten("optim.decay_fraction")) return "";
  return fmt::format(
      "{}: its steps are fixed once it begins, and on a machine that is then slower by more than "
      "{:.0f}%, the run ends more than a tenth after its time: a decay of 0.2 allows for {:.0f}%",
      options.Describe("optim.decay_fraction"), 100 * slack, 100 * DecaySlack(0.2));
}

std::string NoteOnRate(const Options& options, const RunSetup& setup) {
  const bool tunes = setup.conversations || setup.prefers();
  if (!tunes || setup.config.init_from.empty() || options.IsWritten("optim.lr")) return "";
  return StrCat(options.Describe("optim.lr"), " is meant for random weights; ",
                "tuning usually takes 1e-5 to 5e-5, and adapters ten times that");
}

}  // namespace

std::string NoteOnWarmup(const Options& options, const RunSetup& setup) {
  if (2 * setup.config.optim.warmup <= setup.steps()) return "";
  return StrCat(options.Describe("optim.warmup"), " is more than half of the ", setup.steps(),
                setup.steps() == 1 ? " step" : " steps",
                " of this run, which hardly learns before ",
                "its learning rate has risen: leave it out for a tenth of them, or train longer");
}

std::string ChangesOfPast(const RunConfig& before, const RunConfig& now, int64_t step) {
  if (before.train.steps == 0 || now.train.steps == 0) return "";
  RunConfig old = before, changed = now;
  TakeOverSettled(before, &changed);
  for (RunConfig* config : {&old, &changed}) SettleSchedule(*config);
  const OptimOptions &was = old.optim, &is = changed.optim;
  const optim::LrSchedule old_rate = MakeSchedule(old), rate = MakeSchedule(changed);
  for (int64_t i = 0; i < step; ++i) {
    if (old_rate(i) == rate(i)) continue;
    return fmt::format(
        "The schedule would have been otherwise in the past: step {} had the learning "
        "rate {:.4g}, and would have had {:.4g}.",
        i + 1, old_rate(i), rate(i));
  }
  const bool falls = is.weight_decay > 0 && is.weight_decay_schedule == "linear";
  if (step == 0 || !falls || was.decay_steps == is.decay_steps) return "";
  return fmt::format(
      "The schedule would have been otherwise in the past: weight decay fell to 0 at "
      "step {}, and would have at step {}.",
      was.decay_steps, is.decay_steps);
}

std::vector<std::string> NotesOn(const Options& options, const RunSetup& setup) {
  std::vector<std::string> notes = {
      NoteOnSplits(setup.config.data), NoteOnPlan(setup),    NoteOnWarmup(options, setup),
      NoteOnRate(options, setup),      NoteOnRepeats(setup), NoteOnDecay(options, setup),
      NoteOnTime(options, setup)};
  std::erase(notes, "");
  return notes;
}

}  // namespace lockstep::models
