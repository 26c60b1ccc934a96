#include "models/trainer.h"

#include <cmath>

#include "core/engine.h"
#include "kernels/softmax_cross_entropy/softmax_cross_entropy.h"
#include "optim/clip.h"

namespace lockstep::models {
namespace {

// i32 [B, T] on the model's device.
Tensor ToTensor(const std::vector<int32_t>& values, const data::Batch& batch, Device device) {
  return Tensor::FromVector<int32_t>(values, {batch.rows, batch.cols}, device);
}

}  // namespace

Trainer::Trainer(LanguageModel& model, optim::Optimizer& optimizer, optim::LrSchedule schedule,
                 data::Loader& loader, const TrainerOptions& options)
    : model_(model),
      optimizer_(optimizer),
      schedule_(std::move(schedule)),
      loader_(loader),
      options_(options),
      parameters_(model.Parameters()),
      state_(parameters_.at(0)->value().device(), options.seed),
      step_(options.first_step) {
  LS_CHECK(options.grad_accum >= 1, "grad_accum must be at least 1, got ", options.grad_accum);
}

StepMetrics Trainer::Step() {
  if (options_.trace != nullptr) options_.trace->BeginStep(step_ + 1);
  const TraceSpan span(options_.trace, "step", "step");
  PhaseClock clock(&StepTimes::update_ms, options_.trace);
  const double lr = schedule_(step_);
  optimizer_.BeginStep(state_, step_, lr);
  int64_t tokens = 0;
  const double loss = AccumulateGradients(&tokens, clock);
  optim::ClipGradNorm(parameters_, options_.clip, state_);
  optimizer_.Step(state_);
  const StepValues values = state_.Read();
  if (values.found_inf || !std::isfinite(loss)) ThrowNonFinite(loss);
  model_.ZeroGrad();
  ++step_;
  const StepTimes times = clock.Stop();
  return {.step = step_,
          .loss = loss,
          .grad_norm = values.grad_norm,
          .lr = lr,
          .ms = times.total(),
          .tokens_per_second = static_cast<double>(tokens) / (times.total() * 1e-3),
          .times = times,
          .pauses = {},
          .val_loss = {}};
}

double Trainer::AccumulateGradients(int64_t* tokens, PhaseClock& clock) {
  const TrainingScope scope(state_);
  std::optional<TraceBackward> nodes;
  BackwardOptions backward;
  if (options_.trace != nullptr && options_.trace->active()) {
    backward.observers.push_back(&nodes.emplace(*options_.trace));
  }
  double loss = 0;
  for (int64_t a = 0; a < options_.grad_accum; ++a) {
    clock.Enter(&StepTimes::data_ms);
    const data::Batch& batch = loader_.Next();
    LS_INVARIANT(batch.step == step_ && batch.micro_step == a, "the loader is at another step");
    // Every micro-batch has as many targets, so the divisor is known before the first backward.
    const int64_t step_tokens = batch.num_targets * options_.grad_accum;
    *tokens += batch.num_targets;
    state_.SetFirstSample(a * batch.rows);
    const Tensor ids = ToTensor(batch.inputs, batch, state_.device());
    const Tensor targets = ToTensor(batch.targets, batch, state_.device());
    clock.Enter(&StepTimes::forward_ms);
    const Tensor logits = model_(ids);
    const Tensor sum = ops::SoftmaxCrossEntropy(logits, targets, Reduction::kSum);
    clock.Enter(&StepTimes::backward_ms);
    Backward(sum,
             Tensor::Full(sum.shape(), 1.0 / static_cast<double>(step_tokens), sum.dtype(),
                          sum.device()),
             backward);
    loss += sum.Item() / static_cast<double>(step_tokens);
  }
  clock.Enter(&StepTimes::update_ms);
  return loss;
}

void Trainer::ThrowNonFinite(double loss) {
  std::string bad;
  for (const auto& p : parameters_) {
    if (!p->grad().defined()) continue;
    for (double g : p->grad().To(DType::kF64).ToVector<double>()) {
      if (!std::isfinite(g)) bad = p->name();
    }
    if (!bad.empty()) break;
  }
  model_.ZeroGrad();
  throw NonFiniteError(
      StrCat("step ", step_ + 1, ": the loss is ", loss,
             bad.empty() ? "" : StrCat(" and the gradient of '", bad, "' is not finite"),
             "; the update was not made. Lower optim.lr, raise optim.warmup, or set optim.clip"));
}

double Trainer::Evaluate(const data::EvalBatches& batches) {
  const NoGrad no_grad;
  double sum = 0;
  for (int64_t i = 0; i < batches.size(); ++i) {
    batches.Read(i, &eval_batch_);
    const Tensor logits = model_(ToTensor(eval_batch_.inputs, eval_batch_, state_.device()));
    sum += ops::SoftmaxCrossEntropy(
               logits, ToTensor(eval_batch_.targets, eval_batch_, state_.device()), Reduction::kSum)
               .Item();
  }
  return sum / static_cast<double>(batches.num_targets());
}

}  // namespace lockstep::models
