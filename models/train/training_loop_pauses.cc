// What a run does between its steps: evaluations, samples, checkpoints, records.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/allocator.h"
#include "core/io/file.h"
#include "core/kernel_choices.h"
#include "data/tokenizer/id_tokenizer.h"
#include "models/checkpoint/run_folder.h"
#include "models/gpt/generate.h"
#include "models/memory/machine_memory.h"
#include "models/options/option_text.h"
#include "models/plan/planned_ledger.h"
#include "models/report/format.h"
#include "models/report/run_summary.h"
#include "models/train/run_generation.h"
#include "models/train/run_model.h"
#include "models/train/training_loop.h"

namespace lockstep::models {

// Before the first step.
void TrainingLoop::Begin() {
  if (config_.checkpoint.save_initial) Save({.required = true});
  if (config_.train.eval_every > 0) {
    StepMetrics m;
    Evaluate(&m);
    if (interrupt_ == 0) EvaluateTasks(&m);
    if (log_ && (m.val_loss || !m.tasks.empty())) log_->Step(m);
  }
  if (interrupt_ != 0 && !config_.checkpoint.save_initial) Save({.required = true});
}

// After a step, whose metrics `m` are not logged yet: an evaluation, a sample, a checkpoint. A
// signal leaves the first two out, or ends them; the run then begins with them when it goes on.
// Returns whether there is such a rest.
bool TrainingLoop::DoWhatIsDue(StepMetrics m) {
  const bool last = m.step == setup_.steps();
  const bool evaluate = last || Every(config_.train.eval_every, m.step);
  const bool tasks = TasksAreDue(m.step);
  const bool sample =
      config_.train.sample_tokens > 0 && (last || Every(config_.train.sample_every, m.step));
  if (evaluate) Evaluate(&m);
  if (tasks && interrupt_ == 0) EvaluateTasks(&m);
  const bool stop = interrupt_ != 0;
  if (sample && !stop) Timed(Pause::kSample, [&] { Sample(); });
  // A loop that ends here tells of the steps since the last one that was printed.
  if ((stop || summoned_) && m.kernel_ms.empty()) m.kernel_ms = kernels_.Take();
  // It was saved as unfinished before.
  const bool again = m.step == setup_.start.step && !setup_.start.going_on;
  const bool begins_decay = m.step == config_.optim.decay_start;
  const bool save =
      last || stop || again || begins_decay || Every(config_.checkpoint.every, m.step);
  ranks_.OnMain("writing its log", [&] {
    log_->Step(m, last || stop);
    if (save || m.step == setup_.start.step + 1) WriteKernelChoices();
  });
  const bool unfinished = stop && (sample || tasks || (evaluate && !validation_.empty()));
  if (save) {
    Save({.required = last || stop || begins_decay, .pinned = begins_decay, .val_loss = m.val_loss},
         unfinished ? ToJson(m) : "");
  }
  if ((evaluate || tasks) && !last && !stop) {
    ranks_.OnMain("writing the report", [&] {
      if (budget_) log_->Replan(MakeReportInput());
      log_->WriteReport();
    });
  }
  return unfinished;
}

// Only on the main rank.
void TrainingLoop::End(double seconds, bool complete) {
  FinishTrace();
  const bool reported = log_->Finish(interrupted());
  if (interrupted()) {
    progress_.PrintInterrupted(trainer_.step(), ranks_.on_one_machine());
    return;
  }
  if (complete && reported) Mark();
  progress_.PrintEnd(
      {.step = trainer_.step(),
       .seconds = seconds,
       .peak_bytes = std::max(peak_bytes_, GetAllocator(setup_.device).stats().peak_bytes),
       .resident_bytes = setup_.device.is_cpu() ? PeakResidentBytes() : 0,
       .best_val_loss = best_val_loss_,
       .best_checkpoint = checkpoints_.BestStep(),
       .report = reported ? log_->report_path() : ""});
}

// A signal ends it, and it measures nothing.
void TrainingLoop::Evaluate(StepMetrics* m) {
  if (validation_.empty()) return;
  const Clock::time_point start = Clock::now();
  PreferenceMetrics preference;
  std::vector<SourceLoss> losses;
  // False if a signal ended it.
  const auto measure = [&](const ValidationStream& of, std::optional<double>* loss) {
    *loss = trainer_.EvaluateUnless([&] { return Interrupt(/*ask=*/true) != 0; }, of.batches,
                                    losses.empty() ? &preference : nullptr);
    return loss->has_value();
  };
  const bool stopped = Timed(Pause::kEvaluation, [&] {
    for (const ValidationStream& of : validation_) {
      std::optional<double> loss;
      if (!measure(of, &loss)) return true;
      losses.push_back({of.name, *loss, of.BitsPerByte(*loss)});
    }
    if (!optimizer_ || !optimizer_->keeps_averages()) return false;
    bool complete = false;
    optimizer_->WithAverages([&] { complete = measure(validation_[0], &m->val_loss_ema); });
    return !complete;
  });
  if (stopped) {
    ranks_.OnMain("printing", [&] {
      Warn(StrCat("a signal ended the evaluation after step ", trainer_.step(),
                  ": the same command, run again, begins with it"));
    });
    return;
  }
  m->val_loss = losses[0].loss;
  m->val_bpb = losses[0].bpb;
  m->val_sources.assign(losses.begin() + 1, losses.end());
  if (setup_.prefers()) m->val_preference = preference;
  const bool finite = std::isfinite(*m->val_loss);
  const bool best = finite && (best_val_loss_ == 0 || *m->val_loss < best_val_loss_);
  if (best) best_val_loss_ = *m->val_loss;
  ranks_.OnMain("printing", [&] {
    if (!finite) {
      Warn(StrCat("the validation loss after step ", trainer_.step(),
                  " is not a finite number: these weights are of no use, and ",
                  log_ && checkpoints_.BestStep() >= 0
                      ? StrCat(config_.out_dir, "/best has better ones")
                      : "earlier checkpoints may have better ones"));
    }
    progress_.PrintEvaluation(*m, best, validation_[0].batches.num_targets(), SecondsSince(start));
  });
}

int TrainingLoop::EvaluateOnly() {
  StepMetrics m{.step = trainer_.step()};
  Evaluate(&m);
  EvaluateTasks(&m);
  if (!m.val_loss && !tasks_) {
    throw InputError(
        "there is no validation data to evaluate: hold out a data.val_fraction, or name validation "
        "files");
  }
  return 0;
}

bool TrainingLoop::TasksAreDue(int64_t step) const {
  return tasks_ && (step == setup_.steps() || tasks_->DueAfter(step));
}

// A signal ends it, and it gives no figures.
void TrainingLoop::EvaluateTasks(StepMetrics* m) {
  if (!tasks_) return;
  const Clock::time_point start = Clock::now();
  const auto results = Timed(Pause::kTasks, [&] {
    return tasks_->Run(model_, *step_ranks_, [&] { return Interrupt(/*ask=*/true) != 0; });
  });
  if (results) m->tasks = NamedFigures(*results);
  ranks_.OnMain("printing", [&] {
    if (results) return progress_.PrintTasks(trainer_.step(), *results, SecondsSince(start));
    Warn(StrCat("a signal ended the evaluation of eval.tasks after step ", trainer_.step(),
                ": the same command, run again, begins with it"));
  });
}

// All ranks generate the same text.
void TrainingLoop::Sample() {
  const data::IdTokenizer ids_only(std::min(setup_.dataset.vocab_size, setup_.model.vocab_size));
  const data::Tokenizer& tokenizer =
      setup_.dataset.tokenizer ? *setup_.dataset.tokenizer : ids_only;
  SamplePrompt prompt;
  try {
    prompt = MakeSamplePrompt(setup_, tokenizer);
  } catch (const InputError& e) {
    if (ranks_.is_main()) {
      Warn(StrCat("train.sample_prompt: ", e.what(), "; sampling from the first token instead"));
    }
  }
  if (prompt.ids.empty()) prompt.ids = {tokenizer.end_of_text().value_or(0)};
  const std::vector<int32_t> ids =
      Generate(model_, prompt.ids, std::min(tokenizer.vocab_size(), setup_.model.vocab_size),
               {.tokens = config_.train.sample_tokens,
                .temperature = 0.8,
                .seed = static_cast<uint64_t>(config_.seed)},
               [&](int32_t id) { return std::ranges::find(prompt.ends, id) == prompt.ends.end(); });
  ranks_.OnMain("printing", [&] {
    const std::string start = tokenizer.Decode(prompt.ids);
    std::string text;
    for (const int32_t id : ids) text += tokenizer.TokenText(id);
    progress_.PrintSample(start, text);
    log_->Sample({trainer_.step(), start, text});
  });
}

// What only the loop knows of it.
TrainerState TrainingLoop::State() const {
  const optim::SpikeHistory* const spikes = trainer_.spike_history();
  return {.step = trainer_.step(),
          .best_val_loss = best_val_loss_,
          .last_loss = last_loss_,
          .seconds = budget_ ? Seconds() : 0,
          .loss_scale = trainer_.loss_scale(),
          .spike_history = spikes != nullptr ? *spikes : optim::SpikeHistory(),
          .skips = trainer_.skips(),
          .unfinished_metrics = newest_ ? ToJson(*newest_) : ""};
}

void TrainingLoop::Save(const SaveOptions& options, const std::string& unfinished_metrics) {
  const auto save = [&] {
    // The log of a run resumed from here must have all steps up to here.
    ranks_.OnMain("writing its log", [&] { log_->Flush(); });
    TrainerState state = State();
    state.unfinished_metrics = unfinished_metrics;
    checkpoints_.Save(std::move(state), model_, *optimizer_, step_ranks_->data().outer(), options);
    if (!checkpoints_.is_saving()) NoteSave();
  };
  save_began_ = Clock::now();
  Timed(Pause::kCheckpoint, [&] { slow_ranks_.TimeCheckpoint(save); });
}

// A checkpoint is written.
void TrainingLoop::NoteSave() {
  if (log_) log_->SetBestCheckpoint(checkpoints_.BestStep());
  if (budget_) budget_->AddSave(SecondsSince(save_began_));
}

// With train.time_budget, on the main rank.
void TrainingLoop::StartClock() {
  if (!ranks_.is_main() || config_.train.time_budget.empty() || setup_.start.evaluates) return;
  // Forward is a third of a step; text is generated at a tenth of its speed; disks write this many
  // bytes a second, of a weight itself and two moments.
  constexpr double kForward = 0.33, kGenerate = 10, kWrites = 4e8, kBytes = 12;
  const RunConfig& c = config_;
  const auto tokens = static_cast<double>(setup_.tokens_per_step);
  TimeBudgetOptions options{
      .seconds = ParseDuration(c.train.time_budget),
      .decay_fraction = c.optim.decay_fraction,
      .every = {c.train.eval_every, c.eval.every, c.train.sample_every, c.checkpoint.every},
      .save_seconds = kBytes / kWrites * static_cast<double>(model_.NumWeights())};
  for (const ValidationStream& of : validation_) {
    options.steps[0] += kForward * static_cast<double>(of.batches.num_targets()) / tokens;
  }
  options.steps[2] = kForward * kGenerate * static_cast<double>(c.train.sample_tokens) / tokens;
  budget_.emplace(options);
}

// After a step, on the main rank: the last one, if by the clock the decay begins now; else 0.
int64_t TrainingLoop::LastStepByClock() {
  if (!budget_) return 0;
  budget_->Add(Seconds(), trainer_.step());
  return config_.train.is_open() ? budget_->BeginDecay().value_or(0) : 0;
}

// On all ranks: the decay begins after this step. What is settled is in the run's config.toml, and
// then in a checkpoint, before it has an effect.
void TrainingLoop::SettleEnd(int64_t last) {
  const int64_t step = trainer_.step();
  models::SettleEnd(setup_, step, last);
  trainer_.SetSchedule(MakeSchedule(setup_.config));
  ranks_.OnMain("writing config.toml", [&] {
    BeginRun(setup_.asked, setup_.config);
    log_->Replan(MakeReportInput());
    Print(StrCat("the decay begins after step ", step, " and takes ", last - step, " steps, to ",
                 last, ", in the ", FormatDuration(budget_->SecondsLeft()), " that are left of ",
                 config_.train.time_budget));
  });
}

// Null without train.time_budget.
std::optional<RunProgress::Outlook> TrainingLoop::OutlookByClock() const {
  if (!budget_) return {};
  const bool open = config_.train.is_open();
  const int64_t last = open ? budget_->LastStep().value_or(0) : config_.train.steps;
  return RunProgress::Outlook{last, last > 0 ? budget_->SecondsTo(last, open) : 0,
                              budget_->SecondsLeft()};
}

void TrainingLoop::Mark() const {
  try {
    MarkEnd(config_.out_dir, trainer_.step());
  } catch (const IoError& e) {
    Warn(StrCat("the run is not marked as finished: ", e.what()));
  }
}

// A CPU has only one kernel per op.
void TrainingLoop::WriteKernelChoices() const {
  if (setup_.device.is_cpu()) return;
  try {
    WriteFileAtomically(JoinPath(config_.out_dir, "kernels.json"), KernelChoicesJson());
  } catch (const IoError& e) {
    Warn(StrCat("no kernels.json: ", e.what(), "; training continues"));
  }
}

void TrainingLoop::FinishTrace() {
  if (!trace_) return;
  try {
    if (trace_->Finish()) {
      Print(StrCat("trace ", trace_->path(), ", for chrome://tracing or ui.perfetto.dev"));
    }
  } catch (const IoError& e) {
    Warn(StrCat("no trace: ", e.what(), "; training continues"));
  }
}

ReportInput TrainingLoop::MakeReportInput() const {
  ReportInput input;
  input.name = BaseName(std::filesystem::absolute(config_.out_dir).lexically_normal().string());
  const auto outlook = OutlookByClock();
  input.plan = {.steps = outlook ? outlook->steps : setup_.steps(),
                .tokens_per_step = setup_.tokens_per_step,
                .vocab_size = setup_.model.vocab_size,
                .planned_memory = memory_.peak.total(),
                .utilization = utilization_};
  input.plan.best_checkpoint = checkpoints_.BestStep();
  if (setup_.prefers()) {
    input.plan.indifferent_loss = IndifferentLoss(ToDpoOptions(config_.dpo));
  }
  input.ledger = {.planned_ms = PlannedStep(setup_, ranks_.size(), utilization_),
                  .planned_bytes = ByOwner(memory_),
                  .on_device = setup_.device.is_cuda()};
  input.facts = DescribeRun(setup_, model_, memory_);
  input.config = setup_.asked;
  if (const dist::PipelineSchedule* schedule = step_ranks_->schedule()) {
    input.pipeline = *schedule;
  }
  return input;
}

}  // namespace lockstep::models
