#include "models/train/training_loop.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <utility>

#include "core/allocator.h"
#include "core/io/file.h"
#include "core/kernel_choices.h"
#include "data/tokenizer/id_tokenizer.h"
#include "dist/data_parallel/share_optimizer.h"
#include "dist/groups/agreement.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/run_folder.h"
#include "models/gpt/generate.h"
#include "models/memory/machine_memory.h"
#include "models/report/run_summary.h"
#include "models/train/interrupt.h"
#include "models/train/parallelize.h"
#include "models/train/run_generation.h"
#include "models/train/run_model.h"
#include "models/train/run_optimizer.h"

namespace lockstep::models {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool Every(int64_t period, int64_t step) { return period > 0 && step % period == 0; }

std::unique_ptr<TraceRecorder> MakeTrace(const RunSetup& setup) {
  const auto range = ParseStepRange(setup.config.log.trace);
  if (!range) return nullptr;
  if (setup.start.step >= range->last || range->first > setup.steps()) {
    Warn(StrCat("log.trace = ", setup.config.log.trace,
                ": no trace will be written, since this run "
                "makes steps ",
                setup.start.step + 1, " to ", setup.steps()));
  }
  auto trace = std::make_unique<TraceRecorder>(
      JoinPath(setup.config.out_dir, StrCat("trace-", range->first, "-", range->last, ".json")),
      *range);
  trace->NameThread("trainer");
  return trace;
}

// Of what this rank goes on from.
TrainerState StateOf(const RunSetup& setup, const RunRanks& ranks) {
  if (setup.start.going_on) return *setup.start.going_on;
  const auto& checkpoint = setup.start.checkpoint;
  if (!checkpoint) return {};
  return ReadTrainerState(*checkpoint, WorkerStateOf(setup, "trainer_state", ranks.rank()));
}

const KeptRun* KeptBy(const ElasticRun* elastic, const RunSetup& setup) {
  return elastic != nullptr ? elastic->KeptAt(setup) : nullptr;
}

// Null if nothing is updated.
std::shared_ptr<optim::Optimizer> ReadOptimizer(const RunSetup& setup, Gpt& model,
                                                const RunRanks& ranks, const KeptRun* kept) {
  if (setup.start.evaluates) return nullptr;
  if (kept != nullptr) return kept->optimizer;
  if (setup.start.going_on) return MakeFreshOptimizer(setup, model);  // rank 0's state will follow
  const dist::Pause pause(ranks.control().get(), "reading the optimizer's state");
  return MakeOptimizer(setup, model, ranks.rank());
}

}  // namespace

TrainingLoop::TrainingLoop(const RunSetup& setup, const MemoryPlan& memory,
                           const Utilization& utilization, const RunRanks& ranks,
                           ElasticRun* elastic)
    : setup_(setup),
      memory_(memory),
      utilization_(utilization),
      ranks_(ranks),
      config_(setup.config),
      traced_(ParseStepRange(config_.log.trace)),
      trace_(ranks.is_main() ? MakeTrace(setup) : nullptr),
      elastic_(elastic),
      owned_model_(KeptBy(elastic, setup) ? KeptBy(elastic, setup)->model
                                          : std::make_shared<Gpt>(setup.model)),
      model_(*owned_model_),
      step_ranks_(Parallelize(model_, ranks.groups(), PlanOf(setup, trace_.get()),
                              [&](bool on_meta) {
                                if (KeptBy(elastic, setup)) return;
                                if (on_meta) return MaterializeFor(setup, kMeta, model_);
                                const dist::Pause pause(ranks.control().get(),
                                                        "reading the weights");
                                FillModel(setup, model_);
                              })),
      optimizer_(ReadOptimizer(setup, model_, ranks, KeptBy(elastic, setup))),
      objective_(MakeObjective(setup.config, model_)),
      sampler_(data::MakeSampler(setup.dataset, data::ParseOrder(config_.data.order),
                                 static_cast<uint64_t>(config_.seed), setup.sample_tokens())),
      loader_(setup.dataset.train, sampler_,
              {.batch_size = config_.train.batch_size,
               .micro_batches = setup.micro_batches,
               .micro_order = step_ranks_->data().micro_order(),
               .document_mask = setup.document_mask,
               .samples_more = setup.SamplesBefore(0)},
              setup.start.step),
      trainer_(model_, optimizer_.get(), MakeSchedule(setup), loader_,
               {.first_step = setup.start.step,
                .micro_batches = setup.micro_batches,
                .clip = config_.optim.clip,
                .seed = static_cast<uint64_t>(config_.seed),
                .trace = trace_.get(),
                .cuda_graphs = config_.train.cuda_graphs,
                .say = Warn,
                .objective = objective_.get(),
                .ranks = step_ranks_.get(),
                .check_every = config_.dist.check_every,
                .max_skips = config_.train.max_skips,
                .loss_scaling = LossScalingFor(config_.train),
                .loss_scale = StateOf(setup, ranks).loss_scale,
                .spike = config_.train.spike,
                .spike_history = StateOf(setup, ranks).spike_history,
                .sums_first = elastic != nullptr}),
      slow_ranks_(ranks, step_ranks_->data()),
      checkpoints_(setup, ranks),
      progress_(setup, utilization_) {
  if (setup.dataset.val && setup.dataset.val->size() >= 2) {
    validation_.emplace(setup.dataset.val, setup.sample_tokens(), config_.train.batch_size,
                        config_.train.eval_batches, setup.document_mask);
  }
  if (setup.start.going_on && ranks.control()) dist::ShareOptimizer(*ranks.control(), *optimizer_);
  GetAllocator(kCpu).Trim();  // gives back what reading took
  if (trace_) TraceForward(model_, *trace_);
  if (setup.start.checkpoint || setup.start.going_on) {
    const TrainerState state = StateOf(setup, ranks);
    if (state.measured_on.empty() || state.measured_on == setup.measured_on) {
      best_val_loss_ = state.best_val_loss;
    }
    last_loss_ = state.last_loss;
    const std::string arithmetic = ArithmeticOf(setup);
    if (!state.arithmetic.empty() && state.arithmetic != arithmetic && ranks.is_main()) {
      Warn(StrCat("the checkpoint was computed by ", state.arithmetic, ", and this run goes on by ",
                  arithmetic, ": its bits differ from those of a run that nothing interrupted"));
    }
    unfinished_ = newest_ = ParseMetrics(state.unfinished_metrics);
    // That of a run without workers has none.
    optim::Optimizer* const outer = step_ranks_->data().outer();
    if (outer != nullptr && state.workers > 0) {
      LoadOptimizerState(*setup.start.checkpoint, *outer, kOuterFile);
    }
  }
}

int TrainingLoop::Train() {
  ranks_.OnMain("opening its log", [&] {
    BeginRun(setup_.asked, setup_.config);
    const bool logs_again = setup_.start.step == 0 || unfinished_;
    const int64_t first_step = setup_.start.step + (logs_again ? 0 : 1);
    log_ = std::make_unique<RunLog>(config_.out_dir, MakeReportInput(), first_step, trace_.get(),
                                    Warn);
  });
  try {
    return TrainSteps();
  } catch (const dist::CollectiveError& e) {
    if (elastic_ != nullptr) {
      Keep();
    } else if (log_) {
      log_->Fail(e.what());
    }
    throw;
  } catch (const std::exception& e) {
    if (log_) log_->Fail(e.what());
    throw;
  }
}

// What this process goes on from in the next world. A step that others lack is whole here. What is
// due after it is done again, since only the main rank knows how far that had come, and may be the
// one that has ended.
void TrainingLoop::Keep() {
  model_.ZeroGrad();
  if (std::optional<StepMetrics> m = trainer_.Finish()) {
    Add(*m);
    newest_ = *m;
  }
  TrainerState state = State();
  if (newest_) state.unfinished_metrics = ToJson(*newest_);
  elastic_->Keep({setup_, owned_model_, optimizer_, std::move(state)});
}

int TrainingLoop::TrainSteps() {
  std::optional<InterruptGuard> interrupt;
  if (elastic_ == nullptr) interrupt.emplace();
  const Clock::time_point start = Clock::now();
  if (trainer_.step() == 0) Begin();
  if (unfinished_) rest_ = DoWhatIsDue(*unfinished_);
  while (interrupt_ == 0 && !summoned_ && trainer_.step() < setup_.steps()) {
    // A step after which nothing was due is logged once the next one is under way.
    if (std::optional<StepMetrics> before = TrainStep()) {
      Add(*before);
      ranks_.OnMain("writing its log", [&] { log_->Step(*before); });
    }
    if (checkpoints_.FinishEnded()) NoteBestCheckpoint();
    // On a GPU, its metrics are read once the next step is under way.
    const bool stop = Interrupt() != 0;
    if (!setup_.device.is_cpu() && !stop && !summoned_ && !Due(trainer_.step())) continue;
    StepMetrics m = *trainer_.Finish();
    m.memory_bytes = memory_bytes_;
    newest_ = m;
    if (trace_ && trace_->complete()) FinishTrace();
    Add(m);
    if (Every(config_.train.log_every, m.step) || m.step == setup_.steps() || stop || m.step == 1) {
      ranks_.OnMain("printing", [&] {
        progress_.PrintStep(m);
        log_->Flush();
      });
    }
    rest_ = DoWhatIsDue(m);
  }
  if (summoned_ && interrupt_ == 0 && trainer_.step() < setup_.steps()) {
    checkpoints_.FinishSave();
    Keep();
    elastic_->Leave(true);
    return 0;
  }
  bool complete = false;
  if (!interrupted()) {
    ranks_.OnMain("writing the model for Hugging Face",
                  [&] { complete = checkpoints_.Conclude(); });
  }
  ranks_.OnMain("copying checkpoints to checkpoint.mirror", [&] {
    const int before = InterruptGuard::signal();
    const bool copied =
        checkpoints_.FinishMirror([&] { return InterruptGuard::signal() != before; });
    complete = complete && copied;
  });
  ranks_.OnMain("writing the report", [&] { End(SecondsSince(start), complete); });
  // If the main rank ends before it is done, another one does it.
  if (elastic_ != nullptr && ranks_.control()) ranks_.control()->Barrier()->Wait();
  // mpirun and srun may kill the others once one has ended with a code that is not 0.
  if (interrupted() && ranks_.control()) ranks_.control()->Barrier()->Wait();
  return interrupted() ? 128 + interrupt_ : 0;
}

int TrainingLoop::EvaluateOnly() {
  StepMetrics m;
  Evaluate(&m);
  if (!m.val_loss) {
    throw InputError(
        "there is no validation data to evaluate: hold out a data.val_fraction, or name validation "
        "files");
  }
  return 0;
}

// Before the first step.
void TrainingLoop::Begin() {
  if (config_.checkpoint.save_initial) Save({.required = true});
  if (config_.train.eval_every > 0) {
    StepMetrics m;
    Evaluate(&m);
    if (log_ && m.val_loss) log_->Step(m);
  }
  if (interrupt_ != 0 && !config_.checkpoint.save_initial) Save({.required = true});
}

// After a step, whose metrics `m` are not logged yet: an evaluation, a sample, a checkpoint. A
// signal leaves the first two out, or ends them; the run then begins with them when it goes on.
// Returns whether there is such a rest.
bool TrainingLoop::DoWhatIsDue(StepMetrics m) {
  const bool last = m.step == setup_.steps();
  const bool evaluate = last || Every(config_.train.eval_every, m.step);
  const bool sample =
      config_.train.sample_tokens > 0 && (last || Every(config_.train.sample_every, m.step));
  if (evaluate) Evaluate(&m);
  const bool stop = interrupt_ != 0;
  if (sample && !stop) Timed(&PauseTimes::sample_ms, [&] { Sample(); });
  // It was saved as unfinished before.
  const bool again = m.step == setup_.start.step && !setup_.start.going_on;
  const bool save = last || stop || again || Every(config_.checkpoint.every, m.step);
  ranks_.OnMain("writing its log", [&] {
    log_->Step(m);
    if (save || m.step == setup_.start.step + 1) WriteKernelChoices();
  });
  const bool unfinished = stop && (sample || (evaluate && validation_));
  if (save) {
    Save({.required = last || stop, .val_loss = m.val_loss}, unfinished ? ToJson(m) : "");
  }
  if (evaluate && !last && !stop) {
    ranks_.OnMain("writing the report", [&] { log_->WriteReport(); });
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

// What ranks learn of each other: the signal that any received, the memory of the one that took
// most (stages and shards differ), and who keeps the others waiting. Asking makes the host of a GPU
// wait for the other ranks, so there it is asked only after steps where something is due, or if
// `ask` says so, or about two seconds after the last time, since the grace period of a signal is
// short.
int TrainingLoop::Interrupt(bool ask) {
  int number = InterruptGuard::signal();
  // Workers differ until the end of their round, and none asks the others.
  if (!ask && !step_ranks_->data().MeetAfter(trainer_.step())) {
    if (number != 0 && !std::exchange(told_, true)) {
      const int64_t round = step_ranks_->data().round();
      Warn(StrCat("a signal: the run ends with this round, after step ",
                  (trainer_.step() / round + 1) * round,
                  ", when all ranks have the same weights again"));
    }
    return interrupt_;
  }
  if (number == 0 && OutputIsClosed()) {
    number = SIGPIPE;
    if (interrupt_ == 0) Warn("nobody reads the output any more: the run ends as after Ctrl-C");
  }
  const bool summoned = elastic_ != nullptr && elastic_->is_summoned();
  if (!ranks_.control()) {
    interrupt_ = number;
    summoned_ = summoned;
  } else if (const int64_t step = trainer_.step();
             ask || setup_.device.is_cpu() || Due(step) || step >= ask_step_) {
    constexpr int64_t kPeriodUs = 2'000'000;
    const auto us = static_cast<int64_t>(SecondsSince(asked_) * 1e6);
    std::vector<int64_t> mine = {number, memory_bytes_,
                                 us / std::max<int64_t>(1, step - asked_step_), summoned};
    for (const int64_t value : slow_ranks_.Take()) mine.push_back(value);
    int64_t step_us = 1;  // all ranks must ask after the same steps
    const auto of_ranks = dist::GatherValues(*ranks_.control(), mine);
    slow_ranks_.Judge(of_ranks);
    for (const auto& of_rank : of_ranks) {
      interrupt_ = std::max(interrupt_, static_cast<int>(of_rank[0]));
      memory_bytes_ = std::max(memory_bytes_, of_rank[1]);
      step_us = std::max(step_us, of_rank[2]);
      summoned_ |= of_rank[3] != 0;
    }
    asked_ = Clock::now();
    asked_step_ = step;
    ask_step_ = step + std::max<int64_t>(1, kPeriodUs / step_us);
  }
  return interrupt_;
}

// Whether something happens after this step that needs its numbers or its weights.
bool TrainingLoop::Due(int64_t step) const {
  return step == 1 || step == setup_.steps() || (traced_ && step <= traced_->last) ||
         Every(config_.train.log_every, step) || Every(config_.train.eval_every, step) ||
         Every(config_.train.sample_every, step) || Every(config_.checkpoint.every, step);
}

// Submits a step, and notes the memory that it takes. Returns the metrics of the step before if
// they have not been returned yet.
std::optional<StepMetrics> TrainingLoop::TrainStep() {
  Allocator& allocator = GetAllocator(setup_.device);
  peak_bytes_ = std::max(peak_bytes_, allocator.stats().peak_bytes);
  allocator.ResetPeak();
  // Data ranks begin with the first one's weights; these with what each has read or drawn.
  const bool first = trainer_.step() == setup_.start.step && config_.dist.check_every > 0;
  if (first || Every(config_.dist.check_every, trainer_.step())) {
    const std::string when = first ? "at the start" : StrCat("after step ", trainer_.step());
    CheckReplicas(model_, ranks_.groups(), PlanOf(setup_), when);
  }
  std::optional<StepMetrics> before = trainer_.Submit();
  if (before) before->memory_bytes = memory_bytes_;
  memory_bytes_ = allocator.stats().peak_bytes;
  return before;
}

void TrainingLoop::Add(StepMetrics& m) {
  if (std::isfinite(m.loss)) last_loss_ = m.loss;
  slow_ranks_.Add(m);
  slow_ranks_.Note(&m);
  if (m.spike && ranks_.is_main()) {
    Warn(StrCat("step ", m.step, ": the loss of ", m.loss, " or the gradient norm of ", m.grad_norm,
                " is far above its recent range, and the update was skipped (train.spike = ",
                config_.train.spike, ")"));
  }
  utilization_.Correct(m.tokens_per_second);
  m.mfu = utilization_.Mfu(m.tokens_per_second).value_or(0);
  m.gemm_share = utilization_.GemmShare(m.tokens_per_second).value_or(0);
  m.slow_kernels = static_cast<double>(SlowKernelChoices());
  progress_.Add(m);
}

// A signal ends it, and it measures nothing.
void TrainingLoop::Evaluate(StepMetrics* m) {
  if (!validation_) return;
  const Clock::time_point start = Clock::now();
  PreferenceMetrics preference;
  m->val_loss = Timed(&PauseTimes::eval_ms, [&] {
    return trainer_.EvaluateUnless([&] { return Interrupt(/*ask=*/true) != 0; }, *validation_,
                                   &preference);
  });
  if (!m->val_loss) {
    ranks_.OnMain("printing", [&] {
      Warn(StrCat("a signal ended the evaluation after step ", trainer_.step(),
                  ": the same command, run again, begins with it"));
    });
    return;
  }
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
    progress_.PrintEvaluation(trainer_.step(), *m->val_loss, best, validation_->num_targets(),
                              SecondsSince(start), m->val_preference);
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
          .loss_scale = trainer_.loss_scale(),
          .spike_history = spikes != nullptr ? *spikes : optim::SpikeHistory()};
}

void TrainingLoop::Save(const SaveOptions& options, const std::string& unfinished_metrics) {
  const auto save = [&] {
    // The log of a run resumed from here must have all steps up to here.
    ranks_.OnMain("writing its log", [&] { log_->Flush(); });
    TrainerState state = State();
    state.unfinished_metrics = unfinished_metrics;
    checkpoints_.Save(std::move(state), model_, *optimizer_, step_ranks_->data().outer(), options);
    if (!checkpoints_.is_saving()) NoteBestCheckpoint();
  };
  Timed(&PauseTimes::checkpoint_ms, [&] { slow_ranks_.TimeCheckpoint(save); });
}

void TrainingLoop::NoteBestCheckpoint() {
  if (log_) log_->SetBestCheckpoint(checkpoints_.BestStep());
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
  input.plan = {.steps = setup_.steps(),
                .tokens_per_step = setup_.tokens_per_step,
                .vocab_size = setup_.model.vocab_size,
                .planned_memory = memory_.peak.total(),
                .utilization = utilization_};
  input.plan.best_checkpoint = checkpoints_.BestStep();
  if (setup_.prefers()) {
    input.plan.indifferent_loss = IndifferentLoss(ToDpoOptions(config_.dpo));
  }
  input.facts = DescribeRun(setup_, model_, memory_);
  input.config = setup_.asked;
  if (const dist::PipelineSchedule* schedule = step_ranks_->schedule()) {
    input.pipeline = *schedule;
  }
  return input;
}

}  // namespace lockstep::models
