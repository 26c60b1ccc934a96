#include "models/train_gpt.h"

#include <chrono>
#include <cmath>
#include <filesystem>

#include "core/allocator.h"
#include "core/file.h"
#include "core/kernel_choices.h"
#include "core/philox.h"
#include "core/thread_pool.h"
#include "data/id_tokenizer.h"
#include "dist/agreement.h"
#include "dist/flight_recorder.h"
#include "models/checkpoint.h"
#include "models/generate.h"
#include "models/interrupt.h"
#include "models/machine_memory.h"
#include "models/memory_plan.h"
#include "models/option_step_range.h"
#include "models/run_log.h"
#include "models/run_progress.h"
#include "models/run_ranks.h"
#include "models/run_setup.h"
#include "models/run_summary.h"
#include "models/trainer.h"

namespace lockstep::models {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The loop around Trainer: evaluations, samples, checkpoints.
class Run {
 public:
  Run(const RunSetup& setup, const MemoryPlan& memory, const Utilization& utilization,
      RunRanks& ranks)
      : setup_(setup),
        memory_(memory),
        utilization_(utilization),
        ranks_(ranks),
        config_(setup.config),
        traced_(ParseStepRange(config_.log.trace)),
        trace_(ranks.is_main() ? MakeTrace(setup) : nullptr),
        model_(MakeModel(setup)),
        parallel_(MakeParallel()),
        optimizer_(MakeOptimizer(setup, *model_)),
        sampler_(data::ParseOrder(config_.data.order), static_cast<uint64_t>(config_.seed),
                 setup.dataset.train->size(), setup.window),
        loader_(setup.dataset.train, sampler_,
                {.batch_size = config_.train.batch_size,
                 .micro_batches = setup.micro_batches,
                 .micro_order =
                     parallel_ ? parallel_->reducer().micro_order() : std::vector<int64_t>{}},
                setup.start.step),
        trainer_(*model_, *optimizer_, MakeSchedule(setup), loader_,
                 {.first_step = setup.start.step,
                  .micro_batches = setup.micro_batches,
                  .clip = config_.optim.clip,
                  .seed = static_cast<uint64_t>(config_.seed),
                  .trace = trace_.get(),
                  .cuda_graphs = config_.train.cuda_graphs,
                  .say = Warn,
                  .parallel = parallel_.get(),
                  .check_every = parallel_ ? config_.dist.check_every : 0,
                  .max_skips = config_.train.max_skips}),
        store_(config_.out_dir, {.keep = config_.checkpoint.keep,
                                 .keep_best = config_.checkpoint.keep_best,
                                 .warn = Warn}),
        progress_(setup, utilization) {
    if (setup.dataset.val && setup.dataset.val->size() >= 2) {
      validation_.emplace(setup.dataset.val, setup.window, config_.train.batch_size,
                          config_.train.eval_batches);
    }
    if (trace_) TraceForward(*model_, *trace_);
    if (setup.start.checkpoint) {
      const TrainerState state = ReadTrainerState(*setup.start.checkpoint);
      best_val_loss_ = state.best_val_loss;
      last_loss_ = state.last_loss;
    }
  }

  // The main rank writes and prints; the others go along.
  int Train() { return ranks_.is_main() ? Loop() : Follow(); }

 private:
  int Loop() {
    // A run that starts anew tells step 0 again.
    const int64_t first_told = setup_.start.step == 0 ? 0 : setup_.start.step + 1;
    RunLog log = ranks_.Alone("opening its log", [&] {
      WriteFileAtomically(JoinPath(config_.out_dir, "config.toml"), ToToml(config_));
      return RunLog(config_.out_dir, MakeReportInput(), first_told, trace_.get(), Warn);
    });
    const InterruptGuard interrupt;
    const Clock::time_point start = Clock::now();
    if (trainer_.step() == 0) Begin(log);
    while (trainer_.step() < setup_.steps) {
      if (const auto before = TrainStep()) Count(*before, log);
      const bool last = trainer_.step() == setup_.steps;
      const bool stop = Interrupt() != 0;
      // A GPU goes on with the next step meanwhile.
      if (!setup_.device.is_cpu() && !last && !stop && !Due(trainer_.step())) continue;
      StepMetrics m = *trainer_.Finish();
      m.memory_bytes = memory_bytes_;
      if (trace_ && trace_->complete()) FinishTrace();
      Add(m);
      if (Every(config_.train.log_every, m.step) || last || stop || m.step == 1) {
        ranks_.Alone("printing", [&] {
          progress_.PrintStep(m);
          log.Flush();
        });
      }
      const bool evaluate = last || (!stop && Every(config_.train.eval_every, m.step));
      if (evaluate) m.val_loss = log.Timed(&PauseTimes::eval_ms, [&] { return Evaluate(); });
      if (last || (!stop && Every(config_.train.sample_every, m.step)))
        Timed(log, &PauseTimes::sample_ms, "sampling", [&] { Sample(log); });
      const bool save = last || stop || Every(config_.checkpoint.every, m.step);
      ranks_.Alone("writing its log", [&] {
        log.Step(m);
        if (save || m.step == setup_.start.step + 1) WriteKernelChoices();
      });
      if (save) {
        Timed(log, &PauseTimes::checkpoint_ms, "writing a checkpoint", [&] {
          log.Flush();  // a run that is resumed from here has told all steps up to here
          Save(last || stop, m.val_loss);
        });
        log.SetBestCheckpoint(BestCheckpoint());
      }
      const dist::Pause pause(ranks_.control().get(), "writing the report");
      if (evaluate && !last) log.WriteReport();
      if (stop && !last) {
        FinishTrace();
        log.Finish(/*interrupted=*/true);
        progress_.PrintInterrupted(trainer_.step(), ranks_.on_one_machine());
        return 128 + interrupt_;
      }
    }
    const dist::Pause pause(ranks_.control().get(), "writing the report");
    FinishTrace();
    log.Finish(/*interrupted=*/false);
    progress_.PrintEnd(
        {.step = trainer_.step(),
         .seconds = SecondsSince(start),
         .peak_bytes = std::max(peak_bytes_, GetAllocator(setup_.device).stats().peak_bytes),
         .resident_bytes = setup_.device.is_cpu() ? PeakResidentBytes() : 0,
         .best_val_loss = best_val_loss_,
         .best_checkpoint = BestCheckpoint(),
         .report = log.report_path()});
    return 0;
  }

  // What the other ranks do of Loop: the same steps and evaluations.
  int Follow() {
    const InterruptGuard interrupt;
    if (trainer_.step() == 0 && config_.train.eval_every > 0) EvaluateQuietly();
    while (trainer_.step() < setup_.steps) {
      trainer_.Submit();
      const bool last = trainer_.step() == setup_.steps;
      const bool stop = Interrupt() != 0;
      if (!setup_.device.is_cpu() && !last && !stop && !Due(trainer_.step())) continue;
      trainer_.Finish();
      if (last || (!stop && Every(config_.train.eval_every, trainer_.step()))) EvaluateQuietly();
      if (stop && !last) return 128 + interrupt_;
    }
    return 0;
  }

  // The signal that came, to whichever rank: all of them stop after the same step. Asking makes a
  // GPU's host wait for the others, so there only steps that are due ask.
  int Interrupt() {
    if (!parallel_) {
      interrupt_ = InterruptGuard::signal();
    } else if (setup_.device.is_cpu() || Due(trainer_.step())) {
      const double mine = InterruptGuard::signal();
      for (const auto& of_rank : parallel_->Gather(std::span(&mine, 1))) {
        interrupt_ = std::max(interrupt_, static_cast<int>(of_rank[0]));
      }
    }
    return interrupt_;
  }

  // Null where a single process needs none.
  std::unique_ptr<dist::DataParallel> MakeParallel() {
    if (!SumsGradients(setup_)) return nullptr;
    return std::make_unique<dist::DataParallel>(
        ranks_.gradients(), *model_,
        ToReducerOptions(config_.dist, setup_.micro_batches, trace_.get()), ranks_.control());
  }

  // What the main rank does alone.
  template <class F>
  void Timed(RunLog& log, double PauseTimes::*time, const char* what, const F& f) {
    log.Timed(time, [&] { ranks_.Alone(what, f); });
  }

  static bool Every(int64_t period, int64_t step) { return period > 0 && step % period == 0; }

  ReportInput MakeReportInput() const {
    ReportInput input;
    input.name = BaseName(std::filesystem::absolute(config_.out_dir).lexically_normal().string());
    input.plan = {.steps = setup_.steps,
                  .tokens_per_step = setup_.tokens_per_step,
                  .vocab_size = setup_.model.vocab_size,
                  .planned_memory = memory_.peak.total(),
                  .utilization = utilization_};
    input.plan.best_checkpoint = BestCheckpoint();
    input.facts = DescribeRun(setup_, *model_, memory_);
    input.config = config_;
    return input;
  }

  // RunPlan::best_checkpoint. A folder that can't be read must not end a run that can go on.
  int64_t BestCheckpoint() const {
    if (!config_.checkpoint.keep_best) return -1;
    try {
      const auto best = store_.Best();
      return best ? best->step : -1;
    } catch (const IoError& e) {
      Warn(StrCat("which checkpoint is the best is not known: ", e.what(), "; training goes on"));
      return -1;
    }
  }

  void Begin(RunLog& log) {
    if (config_.checkpoint.save_initial)
      Timed(log, &PauseTimes::checkpoint_ms, "writing a checkpoint",
            [&] { Save(/*required=*/true, {}); });
    if (config_.train.eval_every > 0) {
      StepMetrics m;
      m.val_loss = log.Timed(&PauseTimes::eval_ms, [&] { return Evaluate(); });
      log.Step(m);
    }
  }

  static std::unique_ptr<TraceRecorder> MakeTrace(const RunSetup& setup) {
    const auto range = ParseStepRange(setup.config.log.trace);
    if (!range) return nullptr;
    if (setup.start.step >= range->last || range->first > setup.steps) {
      Warn(StrCat("log.trace = ", setup.config.log.trace, ": this run makes steps ",
                  setup.start.step + 1, " to ", setup.steps, "; there will be no trace"));
    }
    auto trace = std::make_unique<TraceRecorder>(
        JoinPath(setup.config.out_dir, StrCat("trace-", range->first, "-", range->last, ".json")),
        *range);
    trace->NameThread("trainer");
    return trace;
  }

  void FinishTrace() {
    if (!trace_) return;
    try {
      if (trace_->Finish())
        Print(StrCat("trace ", trace_->path(), ", for chrome://tracing or ui.perfetto.dev"));
    } catch (const IoError& e) {
      Warn(StrCat("no trace: ", e.what(), "; training goes on"));
    }
  }

  // Submits a step, and notes the memory that it takes. The metrics of the one before, if they are
  // still to be told.
  std::optional<StepMetrics> TrainStep() {
    Allocator& allocator = GetAllocator(setup_.device);
    peak_bytes_ = std::max(peak_bytes_, allocator.stats().peak_bytes);
    allocator.ResetPeak();
    std::optional<StepMetrics> before = trainer_.Submit();
    if (before) before->memory_bytes = memory_bytes_;
    memory_bytes_ = allocator.stats().peak_bytes;
    return before;
  }

  // A CPU has one kernel of each op.
  void WriteKernelChoices() {
    if (setup_.device.is_cpu()) return;
    try {
      WriteFileAtomically(JoinPath(config_.out_dir, "kernels.json"), KernelChoicesJson());
    } catch (const IoError& e) {
      Warn(StrCat("no kernels.json: ", e.what(), "; training goes on"));
    }
  }

  // Whether something happens after this step that needs its numbers or its weights; the same on
  // all ranks.
  bool Due(int64_t step) const {
    return step == 1 || (traced_ && step <= traced_->last) ||
           Every(config_.train.log_every, step) || Every(config_.train.eval_every, step) ||
           Every(config_.train.sample_every, step) || Every(config_.checkpoint.every, step);
  }

  void Add(StepMetrics& m) {
    if (std::isfinite(m.loss)) last_loss_ = m.loss;
    m.mfu = utilization_.Mfu(m.tokens_per_second).value_or(0);
    m.gemm_share = utilization_.GemmShare(m.tokens_per_second).value_or(0);
    m.slow_kernels = static_cast<double>(SlowKernelChoices());
    progress_.Add(m);
  }
  // A step after which nothing was due.
  void Count(StepMetrics m, RunLog& log) {
    Add(m);
    ranks_.Alone("writing its log", [&] { log.Step(m); });
  }

  void EvaluateQuietly() {
    if (validation_) trainer_.Evaluate(*validation_);
  }

  std::optional<double> Evaluate() {
    if (!validation_) return {};
    const Clock::time_point start = Clock::now();
    const double loss = trainer_.Evaluate(*validation_);
    const bool best = best_val_loss_ == 0 || loss < best_val_loss_;
    if (best) best_val_loss_ = loss;
    const double seconds = SecondsSince(start);
    ranks_.Alone("printing", [&] {
      progress_.PrintEvaluation(trainer_.step(), loss, best, validation_->num_targets(), seconds);
    });
    return loss;
  }

  void Sample(RunLog& log) {
    if (config_.train.sample_tokens == 0) return;
    const data::IdTokenizer ids_only(std::min(setup_.dataset.vocab_size, setup_.model.vocab_size));
    const data::Tokenizer& tokenizer =
        setup_.dataset.tokenizer ? *setup_.dataset.tokenizer : ids_only;
    std::vector<int32_t> prompt;
    try {
      prompt = tokenizer.Encode(config_.train.sample_prompt);
    } catch (const InputError& e) {
      Warn(StrCat("train.sample_prompt: ", e.what(), "; sampling from the first token instead"));
    }
    if (prompt.empty()) prompt = {tokenizer.end_of_text().value_or(0)};
    const std::vector<int32_t> ids =
        Generate(*model_, prompt, std::min(tokenizer.vocab_size(), setup_.model.vocab_size),
                 {.tokens = config_.train.sample_tokens,
                  .temperature = 0.8,
                  .seed = static_cast<uint64_t>(config_.seed)});
    const std::string start = tokenizer.Decode(prompt), text = tokenizer.Decode(ids);
    progress_.PrintSample(start, text);
    log.Sample({trainer_.step(), start, text});
  }

  // A disk that fills up must not end a run that can go on; but where the checkpoint is the point
  // (the end, an interrupt), its loss is an error.
  void Save(bool required, std::optional<double> val_loss) {
    const TrainerState state{.step = trainer_.step(),
                             .tokens_seen = trainer_.step() * setup_.tokens_per_step,
                             .best_val_loss = best_val_loss_,
                             .last_loss = last_loss_,
                             .config_toml = ToToml(config_),
                             .data_fingerprint = setup_.dataset.fingerprint,
                             .finished = trainer_.step() >= setup_.steps};
    try {
      SaveCheckpoint(store_, state, *model_, *optimizer_, setup_.dataset.tokenizer.get(), val_loss);
    } catch (const IoError& e) {
      if (required) throw;
      Warn(StrCat("no checkpoint of step ", state.step, ": ", e.what(),
                  "; training goes on, earlier checkpoints stay"));
    }
  }

  const RunSetup& setup_;
  const MemoryPlan memory_;
  const Utilization utilization_;
  RunRanks& ranks_;
  const RunConfig& config_;
  const std::optional<StepRange> traced_;
  const std::unique_ptr<TraceRecorder> trace_;
  std::unique_ptr<Gpt> model_;
  std::unique_ptr<dist::DataParallel> parallel_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  data::Sampler sampler_;
  data::Loader loader_;
  Trainer trainer_;
  CheckpointStore store_;
  RunProgress progress_;
  std::optional<data::EvalBatches> validation_;
  int64_t peak_bytes_ = 0, memory_bytes_ = 0;  // of tensors, in all; in the last step
  int interrupt_ = 0;
  double best_val_loss_ = 0, last_loss_ = 0;
};

// What the options leave open must not differ from what the checkpoint was trained with.
void CheckContinues(const RunSetup& setup) {
  if (!setup.start.checkpoint) return;
  const TrainerState state = ReadTrainerState(*setup.start.checkpoint);
  std::string text;
  if (state.data_fingerprint != setup.dataset.fingerprint) {
    text = StrCat("the data (", setup.dataset.name, ") is not what ", *setup.start.checkpoint,
                  " was trained on: restore it");
  } else if (state.tokens_seen != state.step * setup.tokens_per_step) {
    const int64_t before = state.tokens_seen / std::max<int64_t>(state.step, 1);
    text = StrCat(*setup.start.checkpoint, " was trained with ", before, " tokens a step, and ",
                  setup.ranks, setup.ranks == 1 ? " rank" : " ranks",
                  " of this configuration make ", setup.tokens_per_step,
                  ": use as many ranks as before, and "
                  "train.global_batch_size for runs that are the same at any number of them");
  } else {
    return;
  }
  if (setup.config.checkpoint.resume == "auto") {
    throw InputError(StrCat(text,
                            ", or go on with the difference on purpose by "
                            "--checkpoint.resume=",
                            setup.config.out_dir));
  }
  Warn(text);
}

// Before anything is taken. On a GPU memory that is not there cannot be lent by a disk.
void CheckMemory(const RunSetup& setup, const MemoryPlan& plan,
                 const dist::Rendezvous& rendezvous) {
  const MemoryVerdict verdict =
      JudgeMemory(plan, setup, MemoryOf(setup.device), rendezvous.local_world_size);
  if (verdict.kind == MemoryVerdict::Kind::kTooLarge && setup.device.is_cuda()) {
    throw InputError(verdict.text);
  }
  if (verdict.kind != MemoryVerdict::Kind::kFits && rendezvous.local_rank == 0) Warn(verdict.text);
}

// Collective, by all ranks. The recorder may be null.
int TrainRanks(const Options& options, const RunConfig& config, const dist::Rendezvous& rendezvous,
               Device device, const std::shared_ptr<dist::FlightRecorder>& recorder) {
  RunRanks ranks(config, rendezvous, device, recorder);
  ranks.CheckSameOptions(config);
  std::unique_ptr<FileLock> lock;  // the main rank's, until the run has ended
  const RunStart start = ranks.FromMain([&] {
    lock = LockRunFolder(config.out_dir, Warn);
    return PrepareRunFolder(config, Warn);
  });
  // The folder is this run's, and so are the flight records in it.
  if (recorder) recorder->SetFolder(JoinPath(config.out_dir, "flight"));
  const RunSetup setup = PrepareRun(options, config, start, device, ranks.size());
  CheckContinues(setup);
  if (ranks.control()) {
    const std::string& data = setup.dataset.fingerprint;
    dist::CheckEqual(*ranks.control(), "the hash of the data",
                     static_cast<int64_t>(HashName(data.data(), data.size())));
  }
  const MemoryPlan memory = PlanMemory(setup);
  CheckMemory(setup, memory, rendezvous);
  try {
    const Gpt shape(setup.model);
    Utilization utilization{.flops_per_token = shape.FlopsPerToken(setup.window)};
    if (ranks.is_main()) {
      ranks.Alone("printing", [&] {
        PrintSetup(setup, shape, memory);
        if (!start.note.empty()) Print(start.note);
        if (!setup.dataset.note.empty()) Print(setup.dataset.note);
        utilization = MeasureUtilization(device, config.train.precision, ranks.size(),
                                         utilization.flops_per_token);
      });
    }
    return Run(setup, memory, utilization, ranks).Train();
  } catch (const OutOfMemoryError& e) {
    const int64_t shared_by = device.is_cpu() ? rendezvous.local_world_size : 1;
    throw OutOfMemoryError(
        StrCat(e.what(), ": ", MemoryAdvice(memory, setup, MemoryOf(device).total / shared_by)));
  }
}

}  // namespace

int TrainGpt(const Options& options, const RunConfig& config, bool dry_run) {
  const dist::Rendezvous rendezvous = dist::ReadRendezvous();
  const Device device = DeviceOf(config.device, rendezvous);
  SetNumThreads(ThreadsOf(config, rendezvous));
  if (dry_run) {
    const RunSetup setup = PrepareRun(options, config, {}, device, rendezvous.world_size);
    const MemoryPlan memory = PlanMemory(setup);
    CheckMemory(setup, memory, rendezvous);
    PrintSetup(setup, Gpt(setup.model), memory);
    Print(Table(memory));
    Print("dry run: nothing was written or trained");
    return 0;
  }
  if (rendezvous.world_size == 1) return TrainRanks(options, config, rendezvous, device, nullptr);
  const auto recorder =
      std::make_shared<dist::FlightRecorder>("", rendezvous.rank, rendezvous.world_size);
  try {
    return TrainRanks(options, config, rendezvous, device, recorder);
  } catch (const std::exception& e) {
    recorder->Write(e.what());
    throw;
  }
}

}  // namespace lockstep::models
