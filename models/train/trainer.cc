#include "models/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dist/groups/agreement.h"
#include "kernels/loss_scale/loss_scale.h"
#include "models/report/trace_copies.h"
#include "models/train/batch_tensor.h"
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

std::vector<int64_t> MicroOrder(const TrainerOptions& options) {
  LS_CHECK(options.micro_batches >= 1, "micro_batches must be at least 1, got ",
           options.micro_batches);
  if (options.parallel) {
    const dist::DataRanks& parallel = *options.parallel;
    LS_CHECK(parallel.micro_batches() == options.micro_batches, "micro_batches is ",
             options.micro_batches, ", but the ranks partition ", parallel.micro_batches(),
             ": give the trainer and what sums the gradients the same number");
    return parallel.micro_order();
  }
  std::vector<int64_t> order(static_cast<size_t>(options.micro_batches));
  std::iota(order.begin(), order.end(), 0);
  return order;
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
      parameters_(model.Parameters()),
      experts_(model),
      micro_order_(MicroOrder(options)),
      state_(parameters_.at(0)->device(), options.seed),
      step_(options.first_step) {
  if (options.loss_scaling) {
    state_.EnableLossScaling(*options.loss_scaling, options.loss_scale);
    loss_scale_ = state_.Read().loss_scale;
  }
  // Ranks communicate through the host within a step, which a graph cannot do.
  if (!options.cuda_graphs || !state_.device().is_cuda() || options.parallel) return;
  if (optimizer == nullptr) return;
  if (options.preference) return;  // pairs differ in length
  graphs_.emplace(
      state_, parameters_,
      StepGraphs::Options{
          .micro_steps = options.micro_batches,
          .micro_step = [this](const Tensor& ids, const Tensor& targets,
                               const Tensor& root) { return MicroStep(ids, targets, root); },
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
  std::optional<TraceCopies> copies;  // until the GPU has made them
  const TraceSpan span(options_.trace, "step", "step");
  if (state_.device().is_cuda() && options_.trace != nullptr && options_.trace->active()) {
    copies.emplace(*options_.trace);
  }
  PhaseClock clock(&StepTimes::update_ms, options_.trace);
  if (pending_) model_.ZeroGrad();
  if (options_.check_every > 0 && step_ > options_.first_step &&
      step_ % options_.check_every == 0) {
    LS_CHECK(options_.parallel != nullptr,
             "check_every compares ranks, and there is only one: leave it 0");
    options_.parallel->CheckWeights(StrCat("after step ", step_));
  }
  Pending next;
  next.metrics.lr = schedule_(step_);
  const optim::TrainingStep training =
      optimizer_->BeginStep(state_, step_, next.metrics.lr, {.first_sample = 0});
  AccumulateGradients(next, clock);
  if (!experts_.empty()) next.expert_reads = experts_.Take();
  // The previous update must have been good before this one is submitted. Meanwhile the device is
  // busy with this step's gradients.
  std::optional<StepMetrics> before;
  if (pending_) before = Collect(/*have_gradients=*/false);
  graphs_ ? graphs_->Update() : Update();
  MoveExpertBiases(next);
  next.values = state_.ReadLater();
  next.metrics.step = ++step_;
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

// Submits the work of a micro-batch, and returns the sum of its losses.
Tensor Trainer::MicroStep(const Tensor& ids, const Tensor& targets, const Tensor& root) {
  clock_->Enter(&StepTimes::forward_ms);
  const Tensor sum = model_.Loss(ids, targets);
  clock_->Enter(&StepTimes::backward_ms);
  Backward(sum, ops::ScaleRoot(root, state_), backward_);
  return sum.Detach();
}

// The same for pairs; returns their measures.
Tensor Trainer::MicroStepOfPairs(const data::Batch& rows, const Tensor& root) {
  clock_->Enter(&StepTimes::forward_ms);
  const PreferenceObjective::Sums sums = (*options_.preference)(model_, rows, state_.device());
  clock_->Enter(&StepTimes::backward_ms);
  Backward(sums.loss, ops::ScaleRoot(root, state_), backward_);
  return sums.measures;
}

void Trainer::Update() {
  optim::ClipGradNorm(parameters_, options_.clip, state_);
  optimizer_->Step(state_);
}

void Trainer::AccumulateGradients(Pending& pending, PhaseClock& clock) {
  std::optional<TraceBackward> nodes;
  backward_ = {};
  clock_ = &clock;
  const bool traced = options_.trace != nullptr && options_.trace->active();
  if (traced) backward_.observers.push_back(&nodes.emplace(*options_.trace));
  std::vector<data::Batch> in_pipeline;
  int64_t own_tokens = 0;  // of pairs, so far
  for (const int64_t m : micro_order_) {
    clock.Enter(&StepTimes::data_ms);
    const data::Batch& batch = loader_.Next();
    LS_INVARIANT(batch.step == step_ && batch.micro_batch == m, "the loader is at another step");
    // Micro-batches of masked data have unequal numbers of targets, so the divisor is that of the
    // whole step, known before the first backward.
    pending.targets = batch.step_targets;
    pending.tokens = batch.rows * batch.cols * options_.micro_batches;
    data::Batch pairs;
    if (options_.preference) {
      pending.targets = batch.rows * options_.micro_batches;
      pairs = SplitPairs(batch);
      // Other ranks' pairs may be longer or shorter.
      own_tokens += pairs.rows * pairs.cols;
      pending.tokens = own_tokens * options_.micro_batches / std::ssize(micro_order_);
    }
    if (graphs_) {
      graphs_->Load(m, batch);
      continue;
    }
    if (options_.pipeline) {
      in_pipeline.push_back(batch);
      continue;
    }
    state_.SetFirstSample(m * batch.rows);
    // The gradients of this rank's last micro-step come back summed over all ranks.
    if (options_.parallel) options_.parallel->BeginMicroBatch(m == micro_order_.back());
    const Device device = state_.device();
    const nn::DocumentScope documents(DocumentsOf(batch, device));
    const DType wide = AccumulationDType(parameters_[0]->value().dtype());
    const Tensor root = Tensor::Full({}, 1.0 / static_cast<double>(pending.targets), wide, device);
    pending.losses.emplace_back(options_.preference
                                    ? MicroStepOfPairs(pairs, root)
                                    : MicroStep(ToTensor(batch.inputs, batch, device),
                                                ToTensor(batch.targets, batch, device), root));
  }
  if (graphs_) {
    pending.losses = graphs_->Gradients(1.0 / static_cast<double>(pending.targets), traced);
  }
  if (options_.pipeline) {
    clock.Enter(&StepTimes::backward_ms);  // and forward, in turn
    pending.losses = options_.pipeline->Gradients(
        in_pipeline, 1.0 / static_cast<double>(pending.targets), state_, backward_.observers);
  }
  clock.Enter(&StepTimes::update_ms);
  if (options_.parallel && ranks() > 1) {
    const dist::CommunicationTimes& times = options_.parallel->times();
    clock.Move(&StepTimes::backward_ms, &StepTimes::exposed_ms, times.exposed_ms);
    pending.metrics.communication_ms = times.communication_ms;
    pending.metrics.overlapped_ms = times.overlapped_ms;
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
  if (!options_.parallel) return;
  std::vector<double> all;
  for (const auto& load : pending.expert_loads) all.insert(all.end(), load.begin(), load.end());
  options_.parallel->SumInPlace(&all);
  auto next = all.begin();
  for (auto& load : pending.expert_loads) {
    std::copy_n(next, load.size(), load.begin());
    next += static_cast<std::ptrdiff_t>(load.size());
  }
}

// Over all ranks, added in the order of the micro-batches, so that the bits do not depend on the
// number of ranks.
double Trainer::MeanLoss(Pending& pending) {
  std::vector<double> sums(static_cast<size_t>(options_.micro_batches * measures()));
  for (size_t i = 0; i < pending.losses.size(); ++i) {
    Store(pending.losses[i], micro_order_[i], &sums);
  }
  if (options_.parallel) options_.parallel->SumInPlace(&sums);
  double loss = 0;
  for (size_t i = 0; i < sums.size(); i += static_cast<size_t>(measures())) {
    loss += sums[i] / static_cast<double>(pending.targets);
  }
  if (options_.preference) {
    pending.metrics.preference = PreferenceObjective::ToMetrics(AddUp(sums, measures()));
  }
  return loss;
}

// Waits for the results of the pending step.
StepMetrics Trainer::Collect(bool have_gradients) {
  Pending done = std::move(*pending_);
  pending_.reset();
  const double loss = MeanLoss(done);
  SumExpertLoads(done);
  const StepValues values = ToStepValues(done.values);
  StepMetrics& m = done.metrics;
  // The scale, and not the gradients, may have been too large: then a smaller one will do.
  m.skipped = loss_scale_ && options_.loss_scaling->backoff < 1 && values.found_inf &&
              std::isfinite(loss) && loss_scale_->scale > 1;
  if (loss_scale_) {
    loss_scale_ = values.loss_scale;
    m.loss_scale = loss_scale_->scale;
  }
  if ((values.found_inf || !std::isfinite(loss)) && !m.skipped) {
    const std::string what =
        DescribeNonFinite(done.metrics.step, loss, have_gradients, values.found_inf != 0);
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
  m.grad_norm = values.grad_norm;
  m.ms = m.times.total();
  m.tokens_per_second = static_cast<double>(done.tokens) / (m.ms * 1e-3);
  return m;
}

std::string Trainer::DescribeNonFinite(int64_t step, double loss, bool have_gradients,
                                       bool was_skipped) {
  // The gradient that is not finite, and the weight that was not before the step.
  std::string bad, damaged;
  for (const auto& p : parameters_) {
    if (bad.empty() && have_gradients && !IsFinite(p->grad())) bad = p->name();
    if (damaged.empty() && was_skipped && !IsFinite(p->value().Detach())) damaged = p->name();
  }
  std::string where;
  // Those of the next step are there already, unless this step's still are.
  if (options_.parallel) where = options_.parallel->LocateNonFinite(have_gradients ? 0 : 1);
  if (options_.all != nullptr) {
    // With a single data rank, only the parameters.
    if (!where.empty() && ranks() == 1) {
      where = StrCat("rank ", options_.all->world_rank(), " (", where, ")");
    }
    where = EachOnce(dist::GatherTexts(*options_.all, where, kTextLimit));
    // Ranks have parameters of their own, and must say the same.
    for (std::string* name : {&bad, &damaged}) {
      for (const std::string& of_rank : dist::GatherTexts(*options_.all, *name, kTextLimit)) {
        if (*name = of_rank; !name->empty()) break;
      }
    }
    dist::MeetBeforeThrowing(*options_.all);
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
  dist::ProcessGroup* const context = options_.context;
  const int64_t all = ranks() * dist::SizeOf(context);
  const int64_t own = rank() * dist::SizeOf(context) + dist::RankIn(context);
  const int64_t rounds = (batches.size() + all - 1) / all;
  for (int64_t round = 0; round < rounds; ++round) {
    if (round % kRoundsBetweenQuestions == 0 && stop()) return std::nullopt;
    batches.Read((round * all + own) % batches.size(), &eval_batch_);
    if (options_.preference) {
      const data::Batch rows = SplitPairs(eval_batch_);
      reads.emplace_back((*options_.preference)(model_, rows, state_.device()).measures);
      continue;
    }
    const auto on_device = [&](const std::vector<int32_t>& values) {
      return ToTensor(values, eval_batch_, state_.device());
    };
    const nn::DocumentScope documents(DocumentsOf(eval_batch_, state_.device()));
    reads.emplace_back(model_.Loss(on_device(eval_batch_.inputs), on_device(eval_batch_.targets)));
  }
  std::vector<double> sums(static_cast<size_t>(batches.size() * measures()));
  for (size_t i = 0; i < reads.size(); ++i) {
    const int64_t batch = own + static_cast<int64_t>(i) * all;
    if (batch < batches.size()) Store(reads[i], batch, &sums);
  }
  if (options_.parallel) options_.parallel->SumInPlace(&sums);
  if (context != nullptr) {
    const Tensor of_ranks = Tensor::FromVector<double>(sums, {std::ssize(sums)}, context->device());
    context->AllReduce(of_ranks, dist::ReduceOp::kSum, "losses of an evaluation")->Synchronize();
    sums = of_ranks.ToVector<double>();
  }
  sums = AddUp(sums, measures());
  if (!options_.preference) return sums[0] / static_cast<double>(batches.num_targets());
  const PreferenceMetrics of_pairs = PreferenceObjective::ToMetrics(sums);
  if (metrics != nullptr) *metrics = of_pairs;
  return of_pairs.loss;
}

}  // namespace lockstep::models
