#include "models/train/step/trainer.h"

#include <algorithm>
#include <cmath>

#include "dist/groups/agreement.h"
#include "models/report/trace_copies.h"
#include "models/train/step/batch_tensor.h"
#include "models/train/step/phase_clock.h"
#include "optim/clip.h"

namespace lockstep::models {
namespace {

constexpr int64_t kTextLimit = 4096;  // of where a rank says that gradients are not finite

// The texts that are not empty, in a list, each once.
std::string EachOnce(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) {
    if (!text.empty() && all.find(text) == std::string::npos) {
      all += (all.empty() ? "" : ", ") + text;
    }
  }
  return all;
}

// Those of the options, or `alone`, which is made where they name none.
StepRanks& RanksOf(const TrainerOptions& options, std::optional<SampleRanks>* alone) {
  if (options.ranks == nullptr) return alone->emplace(options.micro_batches);
  const int64_t partitioned = options.ranks->data().micro_batches();
  LS_CHECK(partitioned == options.micro_batches, "micro_batches is ", options.micro_batches,
           ", but the ranks partition ", partitioned,
           ": give the trainer and what sums the gradients the same number");
  return *options.ranks;
}

// Those of micro-batch or batch `index`, among those of all.
void Store(HostRead& read, int64_t index, std::vector<double>* all) {
  const std::vector<double> values = read.Get().To(DType::kF64).ToVector<double>();
  std::ranges::copy(values, all->begin() + index * std::ssize(values));
}

// An undefined tensor is.
bool IsFinite(const Tensor& x) {
  if (!x.defined()) return true;
  const std::vector<double> values = x.To(kCpu).To(DType::kF64).ToVector<double>();
  return std::ranges::all_of(values, [](double v) { return std::isfinite(v); });
}

// Adds up groups of n values.
std::vector<double> AddUp(const std::vector<double>& values, int64_t n) {
  std::vector<double> sums(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) sums[i % sums.size()] += values[i];
  return sums;
}

}  // namespace

Trainer::Trainer(LanguageModel& model, optim::Optimizer* optimizer, optim::LrSchedule schedule,
                 data::Loader& loader, const TrainerOptions& options)
    : model_(model),
      optimizer_(optimizer),
      schedule_(std::move(schedule)),
      loader_(loader),
      options_(options),
      objective_(*options.objective),
      ranks_(RanksOf(options, &alone_)),
      parameters_(model.Parameters()),
      experts_(model),
      state_(parameters_.at(0)->device(), options.seed),
      step_(options.first_step),
      skips_(options.skips) {
  experts_.Discard();  // what a step left that another trainer did not finish
  LS_CHECK(options.ranks != nullptr || options.check_every == 0,
           "check_every compares ranks, and there is only one: leave it 0");
  if (options.loss_scaling) {
    state_.EnableLossScaling(*options.loss_scaling, options.loss_scale);
    loss_scale_ = state_.Read().loss_scale;
  }
  if (options.spike > 0) guard_.emplace(options.spike, options.spike_history);
  if (optimizer != nullptr) ranks_.data().Begin(*optimizer);
  // Ranks communicate through the host within a step, which a graph cannot do.
  if (!options.cuda_graphs || !state_.device().is_cuda() || !ranks_.may_be_graphs()) return;
  if (optimizer == nullptr || !objective_.is_model_loss()) return;
  graphs_.emplace(
      state_, parameters_,
      StepGraphs::Options{
          .micro_steps = options.micro_batches,
          .micro_step = [this](const Tensor& ids, const Tensor& targets,
                               const Tensor& root) { return work_->Compute(ids, targets, root); },
          .update = [this] { Update(); },
          .say = options.say});
}

StepMetrics Trainer::Step() {
  Submit();
  return *Finish();
}

std::optional<StepMetrics> Trainer::Submit() {
  LS_CHECK(optimizer_ != nullptr, "a trainer without an optimizer only evaluates: give it one");
  if (options_.trace != nullptr) options_.trace->BeginStep(step_ + 1);
  for (StepObserver* const o : options_.observers) o->BeginStep(step_ + 1);
  std::optional<TraceCopies> copies;  // until the GPU has made them
  const TraceSpan span(options_.trace, "step", "step");
  if (state_.device().is_cuda() && options_.trace != nullptr && options_.trace->active()) {
    copies.emplace(*options_.trace);
  }
  PhaseClock clock(&StepTimes::update_ms, options_.trace);
  if (pending_) model_.ZeroGrad();
  dist::DataRanks& data = ranks_.data();
  // At the end of the round in which it is due.
  if (const int64_t every = options_.check_every; every > 0 && step_ > options_.first_step &&
                                                  data.MeetAfter(step_) &&
                                                  step_ / every > (step_ - data.round()) / every) {
    data.CheckWeights(StrCat("after step ", step_));
  }
  Pending next;
  next.metrics.step = step_ + 1;
  next.metrics.lr = schedule_(step_);
  const optim::TrainingStep training =
      optimizer_->BeginStep(state_, step_, next.metrics.lr, {.first_sample = 0});
  AccumulateGradients(next, clock);
  if (!experts_.empty()) next.expert_reads = experts_.Take();
  // The previous update must have been good before this one is submitted. Meanwhile the device is
  // busy with this step's gradients.
  std::optional<StepMetrics> before;
  if (pending_) before = Collect(/*have_gradients=*/false);
  if (options_.sums_first) {
    next.loss = MeanLoss(next);
    SumExpertLoads(next);
  }
  if (guard_) LimitNorm(next);
  if (options_.before_update) options_.before_update();
  for (StepObserver* const o : options_.observers) o->BeforeUpdate();
  graphs_ ? graphs_->Update() : Update();
  MoveExpertBiases(next);
  next.values = state_.ReadLater();
  const dist::CommunicationTimes of_round = data.EndStep(++step_);
  for (StepObserver* const o : options_.observers) o->EndStep();
  next.metrics.communication_ms += of_round.communication_ms;
  clock.Move(&StepTimes::update_ms, &StepTimes::exposed_ms, of_round.exposed_ms);
  next.metrics.times = clock.Stop();
  pending_ = std::move(next);
  return before;
}

std::optional<StepMetrics> Trainer::Finish() {
  if (!pending_) return {};
  PhaseClock clock(&StepTimes::update_ms, options_.trace);
  pending_->values.Get();
  pending_->metrics.times.update_ms += clock.Stop().update_ms;
  const StepMetrics metrics = Collect(/*have_gradients=*/true);
  model_.ZeroGrad();
  return metrics;
}

std::optional<StepMetrics> Trainer::FinishAlone() {
  if (!pending_) return {};
  const StepMetrics metrics = Collect(/*have_gradients=*/true, /*alone=*/true);
  model_.ZeroGrad();
  return metrics;
}

void Trainer::Update() {
  optim::ClipGradNorm(parameters_, options_.clip, state_);
  optimizer_->Step(state_);
}

void Trainer::AccumulateGradients(Pending& pending, PhaseClock& clock) {
  std::optional<TraceBackward> nodes;
  std::vector<BackwardObserver*> observers;
  if (options_.trace != nullptr && options_.trace->active()) {
    observers.push_back(&nodes.emplace(*options_.trace));
  }
  const auto read = [&](int64_t micro_batch) -> const data::Batch& {
    const data::Batch& batch = loader_.Next();
    LS_INVARIANT(batch.step == step_ && batch.micro_batch == micro_batch,
                 "the loader is at another step");
    for (StepObserver* const o : options_.observers) o->OnBatch(batch);
    return batch;
  };
  StepWork work(model_, objective_, state_, options_.micro_batches, read, clock, observers);
  work_ = &work;
  pending.measures = graphs_ ? graphs_->Gradients(work) : ranks_.Gradients(work);
  work_ = nullptr;
  pending.divisor = work.divisor();
  // Other ranks' rows may be longer or shorter.
  dist::DataRanks& data = ranks_.data();
  pending.tokens = work.tokens() * options_.micro_batches / std::ssize(data.micro_order());
  clock.Enter(&StepTimes::update_ms);
  if (data.size() > 1) {
    const dist::CommunicationTimes& times = data.times();
    clock.Move(&StepTimes::backward_ms, &StepTimes::exposed_ms, times.exposed_ms);
    pending.metrics.communication_ms = times.communication_ms;
    pending.metrics.overlapped_ms = times.overlapped_ms;
    pending.metrics.arrival_ms = times.arrival_ms;
    pending.metrics.receiving_ms = times.receiving_ms;
  }
}

// As much a part of the update as the weights: one that is skipped moves nothing.
void Trainer::MoveExpertBiases(Pending& pending) {
  if (!experts_.has_biases() || state_.Read().found_inf != 0) return;
  SumExpertLoads(pending);
  experts_.MoveBiases(pending.expert_loads);
}

void Trainer::SumExpertLoads(Pending& pending) {
  if (pending.expert_reads.empty()) return;
  pending.expert_loads = nn::ToLoads(std::move(pending.expert_reads));
  pending.expert_reads.clear();
  if (ranks_.data().updates_apart()) return;
  std::vector<double> all;
  for (const auto& load : pending.expert_loads) all.insert(all.end(), load.begin(), load.end());
  ranks_.data().SumInPlace(&all);
  auto next = all.begin();
  for (auto& load : pending.expert_loads) {
    std::copy_n(next, load.size(), load.begin());
    next += static_cast<std::ptrdiff_t>(load.size());
  }
}

// Over all ranks, added in the order of the micro-batches, so that the bits do not depend on the
// number of ranks; over this rank's micro-batches, where it updates by these alone.
double Trainer::MeanLoss(Pending& pending) {
  dist::DataRanks& data = ranks_.data();
  const int64_t n = objective_.measures();
  std::vector<double> sums(static_cast<size_t>(options_.micro_batches * n));
  for (size_t i = 0; i < pending.measures.size(); ++i) {
    Store(pending.measures[i], data.micro_order()[i], &sums);
  }
  if (!data.updates_apart()) data.SumInPlace(&sums);
  const double divisor = static_cast<double>(pending.divisor) * data.share();
  double loss = 0;
  for (size_t i = 0; i < sums.size(); i += static_cast<size_t>(n)) loss += sums[i] / divisor;
  pending.metrics.preference = objective_.MetricsOf(AddUp(sums, n));
  return loss;
}

// So that the update is skipped if the loss or the norm is a spike. All ranks have the same
// numbers; where some compute the same samples together, they decide together all the same.
void Trainer::LimitNorm(Pending& pending) {
  if (!pending.loss) pending.loss = MeanLoss(pending);
  int64_t spike = guard_->IsSpike(*pending.loss);
  if (ranks_.all() != nullptr) {
    const int64_t mine = spike;
    for (const auto& of_rank : dist::GatherValues(*ranks_.all(), std::span(&mine, 1))) {
      spike |= of_rank[0];
    }
  }
  state_.SetNormLimit(spike != 0 ? -1 : guard_->NormLimit());
}

// Waits for the results of the pending step.
StepMetrics Trainer::Collect(bool have_gradients, bool alone) {
  Pending done = std::move(*pending_);
  pending_.reset();
  const double loss = done.loss ? *done.loss : MeanLoss(done);
  SumExpertLoads(done);
  const StepValues values = ToStepValues(done.values);
  StepMetrics& m = done.metrics;
  // The scale, and not the gradients, may have been too large: then a smaller one will do.
  const bool not_finite = values.found_inf == kNotFinite || !std::isfinite(loss);
  m.skipped = loss_scale_ && options_.loss_scaling->backoff < 1 && not_finite &&
              std::isfinite(loss) && loss_scale_->scale > 1;
  m.spike = values.found_inf == kSpike;
  if (guard_) guard_->Add(loss, values.grad_norm);
  if (loss_scale_) {
    loss_scale_ = values.loss_scale;
    m.loss_scale = loss_scale_->scale;
  }
  if (not_finite && !m.skipped) {
    const std::string what =
        DescribeNonFinite(done.metrics.step, loss, have_gradients, values.found_inf != 0, alone);
    // Without found_inf the update was made.
    if (!values.found_inf || skips_ == options_.max_skips) {
      step_ = done.metrics.step - 1;
      model_.ZeroGrad();
      throw NonFiniteError(what);
    }
    ++skips_;
    if (options_.say) {
      options_.say(StrCat(what, " (", skips_, " of at most ", options_.max_skips,
                          " in a row; training continues)"));
    }
  } else {
    skips_ = 0;
  }
  if (!done.expert_loads.empty()) {
    const nn::LoadSpread spread = nn::SpreadOf(done.expert_loads);
    m.expert_most = spread.most;
    m.expert_least = spread.least;
  }
  m.loss = loss;
  dist::DataRanks& data = ranks_.data();
  if (data.updates_apart() && data.MeetAfter(m.step)) m.loss = data.Sum(loss * data.share());
  m.grad_norm = values.grad_norm;
  m.ms = m.times.total();
  m.tokens_per_second = static_cast<double>(done.tokens) / (m.ms * 1e-3);
  return m;
}

std::string Trainer::DescribeNonFinite(int64_t step, double loss, bool have_gradients,
                                       bool was_skipped, bool alone) {
  // The gradient that is not finite, and the weight that was not before the step.
  std::string bad, damaged;
  for (const auto& p : parameters_) {
    if (bad.empty() && have_gradients && !IsFinite(p->grad())) bad = p->name();
    const Tensor value = p->value().Detach();
    const bool judged = damaged.empty() && was_skipped && IsFloating(value.dtype());
    if (judged && !IsFinite(value)) damaged = p->name();
  }
  // Those of the next step are there already, unless this step's still are.
  std::string where;
  if (!alone) where = ranks_.data().LocateNonFinite(have_gradients ? 0 : 1);
  if (dist::ProcessGroup* const all = alone ? nullptr : ranks_.all()) {
    // With a single data rank, only the parameters.
    if (!where.empty() && ranks_.data().size() == 1) {
      where = StrCat("rank ", all->world_rank(), " (", where, ")");
    }
    where = EachOnce(dist::GatherTexts(*all, where, kTextLimit));
    // Ranks have parameters of their own, and must say the same.
    for (std::string* name : {&bad, &damaged}) {
      for (const std::string& of_rank : dist::GatherTexts(*all, *name, kTextLimit)) {
        if (*name = of_rank; !name->empty()) break;
      }
    }
    dist::MeetBeforeThrowing(*all);
  }
  const std::string remedy =
      damaged.empty()
          ? StrCat("Lower optim.lr, raise optim.warmup, or set optim.clip",
                   loss_scale_ ? ", or use train.precision=bf16" : "")
          : StrCat("The weight '", damaged, "' was not finite before: go on from an earlier ",
                   "checkpoint, or begin from other weights with init_from");
  return StrCat("step ", step, ": the loss is ", loss,
                !bad.empty()          ? StrCat(" and the gradient of '", bad, "' is not finite")
                : std::isfinite(loss) ? " and a gradient is not finite"
                                      : "",
                where.empty() ? "" : StrCat(", first on ", where),
                was_skipped ? "; the update was not made. " : "; the update was made. ", remedy);
}

double Trainer::Evaluate(const data::EvalBatches& batches, PreferenceMetrics* metrics) {
  return *EvaluateUnless([] { return false; }, batches, metrics);
}

std::optional<double> Trainer::EvaluateUnless(const std::function<bool()>& stop,
                                              const data::EvalBatches& batches,
                                              PreferenceMetrics* metrics) {
  constexpr int64_t kRoundsBetweenQuestions = 8;  // since ranks wait for each other to answer
  const NoGrad no_grad;
  std::vector<HostRead> reads;
  // A forward may communicate, so all ranks make equally many: a rank that runs out of batches
  // evaluates an earlier one again, which does not count.
  const int64_t all = ranks_.evaluators(), own = ranks_.evaluator();
  const int64_t rounds = (batches.size() + all - 1) / all;
  data::Batch made;
  for (int64_t round = 0; round < rounds; ++round) {
    if (round % kRoundsBetweenQuestions == 0 && stop()) return std::nullopt;
    batches.Read((round * all + own) % batches.size(), &eval_batch_);
    const data::Batch& rows = objective_.RowsOf(eval_batch_, &made);
    const nn::DocumentScope documents(DocumentsOf(rows, state_.device()));
    reads.emplace_back(objective_(model_, rows, state_.device()).measures);
  }
  const int64_t n = objective_.measures();
  std::vector<double> sums(static_cast<size_t>(batches.size() * n));
  for (size_t i = 0; i < reads.size(); ++i) {
    const int64_t batch = own + static_cast<int64_t>(i) * all;
    if (batch < batches.size()) Store(reads[i], batch, &sums);
  }
  ranks_.SumOverEvaluators(&sums);
  sums = AddUp(sums, n);
  if (metrics != nullptr) *metrics = objective_.MetricsOf(sums).value_or(PreferenceMetrics());
  return objective_.MeanOf(sums, batches);
}

}  // namespace lockstep::models
