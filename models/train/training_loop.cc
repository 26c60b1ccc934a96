#include "models/train/training_loop.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/allocator.h"
#include "core/kernel_choices.h"
#include "dist/data_parallel/share_optimizer.h"
#include "dist/groups/agreement.h"
#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/run_folder.h"
#include "models/train/interrupt.h"
#include "models/train/parallelize.h"
#include "models/train/run_model.h"

namespace lockstep::models {
namespace {

std::unique_ptr<TraceRecorder> MakeTrace(const RunSetup& setup) {
  const auto range = ParseStepRange(setup.config.log.trace);
  if (!range) return nullptr;
  if (setup.start.step >= range->last || range->first > setup.steps()) {
    Warn(StrCat("log.trace = ", setup.config.log.trace,
                ": no trace will be written, since this run makes steps ", setup.start.step + 1,
                " to ",
                setup.config.train.is_open() ? "one that is not settled" : StrCat(setup.steps())));
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

// The copies of parts that the world goes on from; null: it does from nothing, or the whole.
StateCopies* Chosen(ElasticRun* elastic, const RunSetup& setup) {
  return elastic != nullptr && setup.start.going_on ? elastic->copies() : nullptr;
}

// Divides the model among the ranks, and gives it its weights, unless an earlier world has left it
// with both.
std::unique_ptr<StepRanks> ShareModel(const RunSetup& setup, Gpt& model, const RunRanks& ranks,
                                      const ParallelPlan& plan, ElasticRun* elastic) {
  if (KeptBy(elastic, setup)) return ShareSamples(model, ranks.groups(), plan);
  return Parallelize(model, ranks.groups(), plan, [&](bool on_meta) {
    if (on_meta) return MaterializeFor(setup, kMeta, model);
    {
      const dist::Pause pause(ranks.control().get(), "reading the weights");
      FillModel(setup, model);
    }
    if (StateCopies* const copies = Chosen(elastic, setup)) {
      copies->Load(ranks.control().get(), model);
    }
  });
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

TrainingLoop::TrainingLoop(RunSetup& setup, const MemoryPlan& memory,
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
      step_ranks_(ShareModel(setup, model_, ranks, PlanOf(setup, trace_.get()), elastic)),
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
      from_(StateOf(setup, ranks)),
      observers_(setup, ranks, *step_ranks_, *objective_, model_),
      trainer_(model_, optimizer_.get(), MakeSchedule(setup.config), loader_,
               {.first_step = setup.start.step,
                .micro_batches = setup.micro_batches,
                .clip = config_.optim.clip,
                .seed = static_cast<uint64_t>(config_.seed),
                .trace = trace_.get(),
                .cuda_graphs = StepObservers::AllowGraphs(config_),
                .say = Warn,
                .objective = objective_.get(),
                .ranks = step_ranks_.get(),
                .check_every = config_.dist.check_every,
                .max_skips = config_.train.max_skips,
                .skips = from_.skips,
                .loss_scaling = LossScalingFor(config_.train),
                .loss_scale = from_.loss_scale,
                .spike = config_.train.spike,
                .spike_history = from_.spike_history,
                .sums_first = elastic != nullptr,
                .before_update =
                    [this] {
                      if (copies_) copies_->Confirm();
                    },
                .observers = observers_.all()}),
      kernels_(setup.device),
      slow_ranks_(ranks, step_ranks_->data()),
      checkpoints_(setup, ranks),
      progress_(setup, utilization_),
      validation_(ValidationOf(setup)),
      tasks_(MakeRunTasks(setup)) {
  StartClock();
  if (StateCopies* const copies = Chosen(elastic, setup)) {
    copies->Load(ranks.control().get(), *optimizer_);
  } else if (setup.start.going_on && ranks.control()) {
    dist::ShareOptimizer(*ranks.control(), *optimizer_);
  }
  if (elastic != nullptr && elastic->copies() != nullptr) {
    copies_ = elastic->copies()->Enter(ranks.copies(), elastic->epoch(),
                                       PartOfRanks(setup, ranks.size()));
  }
  GetAllocator(kCpu).Trim();  // gives back what reading took
  if (trace_) TraceForward(model_, *trace_);
  if (from_.measured_on.empty() || from_.measured_on == setup.measured_on) {
    best_val_loss_ = from_.best_val_loss;
  }
  last_loss_ = from_.last_loss;
  const std::string arithmetic = ArithmeticOf(setup);
  if (!from_.arithmetic.empty() && from_.arithmetic != arithmetic && ranks.is_main()) {
    Warn(StrCat("the checkpoint was computed by ", from_.arithmetic, ", and this run goes on by ",
                arithmetic, ": its bits differ from those of a run that nothing interrupted"));
  }
  unfinished_ = newest_ = ParseMetrics(from_.unfinished_metrics);
  // That of a run without workers has none.
  optim::Optimizer* const outer = step_ranks_->data().outer();
  if (outer != nullptr && from_.workers > 0) {
    LoadOptimizerState(*setup.start.checkpoint, *outer, kOuterFile);
  }
}

int TrainingLoop::Train() {
  // This loop's model has the state now. An older one must not be taken for it.
  if (elastic_ != nullptr && !copies_) elastic_->Forget();
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
  if (copies_) return elastic_->Keep({setup_, nullptr, nullptr, State(), utilization_});
  model_.ZeroGrad();
  if (std::optional<StepMetrics> m = trainer_.FinishAlone()) {
    Add(*m);
    newest_ = *m;
  }
  elastic_->Keep({setup_, owned_model_, optimizer_, State(), utilization_});
}

// For the next world. A rank that is alone copies only when it leaves.
void TrainingLoop::CopyState() {
  if (!copies_ || (ranks_.size() == 1 && !summoned_)) return;
  copies_->Copy(State(), model_, *optimizer_);
}

int TrainingLoop::TrainSteps() {
  std::optional<InterruptGuard> interrupt;
  if (elastic_ == nullptr) interrupt.emplace();
  const Clock::time_point start = Clock::now();
  CopyState();
  if (trainer_.step() == 0) Begin();
  if (unfinished_) rest_ = DoWhatIsDue(*unfinished_);
  while (interrupt_ == 0 && !summoned_ && trainer_.step() < setup_.steps()) {
    // A step after which nothing was due is logged once the next one is under way.
    if (std::optional<StepMetrics> before = TrainStep()) {
      Add(*before);
      ranks_.OnMain("writing its log", [&] { log_->Step(*before); });
    }
    if (checkpoints_.FinishEnded()) NoteSave();
    // On a GPU, its metrics are read once the next step is under way; of an elastic run at once, so
    // that every rank knows what may have to be logged again.
    const bool stop = Interrupt() != 0;
    const bool reads_later = !setup_.device.is_cpu() && elastic_ == nullptr;
    if (reads_later && !stop && !Due(trainer_.step())) continue;
    StepMetrics m = FinishStep();
    m.memory_bytes = memory_bytes_;
    newest_ = m;
    if (trace_ && trace_->complete()) FinishTrace();
    Add(m);
    CopyState();
    if (IsPrinted(m.step) || stop) {
      ranks_.OnMain("printing", [&] {
        progress_.PrintStep(m, OutlookByClock());
        log_->Flush();
      });
    }
    if (observers_.end_run()) {
      checkpoints_.FinishSave();
      ranks_.OnMain("printing", [&] {
        Print(StrCat("step ", m.step, ": its operations are in ",
                     JoinPath(config_.out_dir, OpEventsFile(m.step, 0)),
                     " and its like; the run ends here (log.ops)"));
      });
      return 0;
    }
    rest_ = DoWhatIsDue(m);
  }
  if (copies_) copies_->Confirm();
  if (summoned_ && interrupt_ == 0 && trainer_.step() < setup_.steps()) {
    checkpoints_.FinishSave();
    // The main rank has done all that was due, and so nobody does it again.
    if (ranks_.control()) ranks_.control()->Barrier()->Wait();
    newest_.reset();
    CopyState();
    if (copies_) copies_->Confirm();
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

// What ranks learn of each other: the signal that any received, the memory of the one that took
// most (stages and shards differ), who keeps the others waiting, and what the main rank's clock
// settles. Asking makes the host of a GPU wait for the other ranks, so there it is asked only after
// steps where something is due, or if `ask` says so, or about two seconds after the last time,
// since the grace period of a signal is short.
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
  int64_t last = 0;  // where the decay begins now: the last step
  if (!ranks_.control()) {
    interrupt_ = number;
    summoned_ = summoned;
    if (!ask) last = LastStepByClock();
  } else if (const int64_t step = trainer_.step();
             ask || setup_.device.is_cpu() || Due(step) || step >= ask_step_) {
    constexpr int64_t kPeriodUs = 2'000'000;
    const auto us = static_cast<int64_t>(SecondsSince(asked_) * 1e6);
    std::vector<int64_t> mine = {number, memory_bytes_,
                                 us / std::max<int64_t>(1, step - asked_step_), summoned,
                                 ask ? 0 : LastStepByClock()};
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
    last = of_ranks[0][4];
    asked_ = Clock::now();
    asked_step_ = step;
    ask_step_ = step + std::max<int64_t>(1, kPeriodUs / step_us);
  }
  if (last > 0) SettleEnd(last);
  return interrupt_;
}

// Whether something happens after this step that needs its numbers or its weights.
bool TrainingLoop::Due(int64_t step) const {
  return step == 1 || step == setup_.steps() || step == config_.optim.decay_start ||
         observers_.end_run() || (traced_ && step <= traced_->last) ||
         Every(config_.train.log_every, step) || Every(config_.train.eval_every, step) ||
         TasksAreDue(step) || Every(config_.train.sample_every, step) ||
         Every(config_.checkpoint.every, step);
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
  const KernelTimes::Watch watch(WatchedKernels(trainer_.step() + 1));
  std::optional<StepMetrics> before = trainer_.Submit();
  if (before) before->memory_bytes = memory_bytes_;
  memory_bytes_ = allocator.stats().peak_bytes;
  return before;
}

// On a GPU events around each kernel take time of the host, so only some steps have them; CUDA
// graphs call no kernels.
bool TrainingLoop::WatchesKernels(int64_t step) const {
  if (setup_.device.is_cpu()) return true;
  const bool graphs = StepObservers::AllowGraphs(config_) && step_ranks_->may_be_graphs();
  return !graphs && IsPrinted(step);
}

StepMetrics TrainingLoop::FinishStep() {
  const KernelTimes::Watch watch(WatchedKernels(trainer_.step()));
  return *trainer_.Finish();
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
  if (WatchesKernels(m.step)) kernels_.Add(m.times);
  if (IsPrinted(m.step)) m.kernel_ms = kernels_.Take();
  m.slow_kernels = static_cast<double>(SlowKernelChoices());
  progress_.Add(m);
}

}  // namespace lockstep::models
