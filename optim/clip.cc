#include "optim/clip.h"

#include <unordered_set>
#include <vector>

#include "kernels/global_norm/global_norm.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

namespace {

// Sums the squares of a gradient, in its chunks, into `sums` of all chunks from `at` on.
void SumSquares(const Tensor& grad, const Tensor& sums, int64_t at) {
  if (grad.numel() == 0) return;
  grad_norm_square_sums(CurrentStream(grad.device()), std::span(&grad, 1),
                        sums.Slice(0, at, at + GradNormChunks(grad.numel())));
}

// The exchange that the parameters have in common; null: no parameter is sharded.
PartExchange* PartsOf(std::span<const std::shared_ptr<Parameter>> parameters) {
  PartExchange* parts = nullptr;
  for (const auto& p : parameters) {
    if (!p->grad().defined() || (!p->exchange() && p->layout().is_whole())) continue;
    PartExchange* const own = p->exchange().get();
    LS_CHECK(own != nullptr, "ClipGradNorm: this rank has a part of '", p->name(),
             "' and no way to reach the others', to sum a norm: cut parameters with "
             "dist::FullyShard, dist::Parallelize or dist::PlaceParameters");
    LS_CHECK(!parts || parts == own, "ClipGradNorm: '", p->name(),
             "' is sharded by other means than the parameters before it: take the norm over the "
             "parameters of one model, which is sharded as a whole");
    parts = own;
  }
  return parts;
}

// As ops::GradNorm, where ranks have parts of the gradients: each sums the chunks that it has, and
// the chunks of whole gradients are added in their order. What every rank has whole counts once.
void NormOfParts(std::span<const std::shared_ptr<Parameter>> parameters, PartExchange& parts,
                 double max_norm, const StepState& state) {
  LS_CHECK(max_norm >= 0, "ClipGradNorm: max_norm must be at least 0 (0 = measure only), got ",
           max_norm);
  std::vector<int64_t> first = {0};  // of each parameter's chunks, and, last, how many there are
  for (const auto& p : parameters) {
    const int64_t chunks = !p->grad().defined() ? 0
                           : p->exchange()      ? parts.Chunks(*p)
                                                : GradNormChunks(p->logical_shape().numel());
    first.push_back(first.back() + chunks);
  }
  const Tensor sums = Tensor::Zeros({first.back()}, DType::kF64, state.device());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    if (!p.grad().defined() || !p.exchange()) continue;
    parts.ForEachRun(p, p.grad(), [&](int64_t chunk, const Tensor& values) {
      SumSquares(values, sums, first[i] + chunk);
    });
  }
  parts.Sum(sums);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    if (p.grad().defined() && !p.exchange()) {
      SumSquares(p.grad().Detach().Contiguous(), sums, first[i]);
    }
  }
  grad_norm_finish(CurrentStream(state.device()), sums, max_norm, state.device_values());
}

}  // namespace

void ClipGradNorm(std::span<const std::shared_ptr<Parameter>> parameters, double max_norm,
                  const StepState& state) {
  const TrainingStep* const training = TrainingStep::On(state);
  LS_CHECK(training != nullptr,
           "ClipGradNorm: no step is under way on this StepState. Begin it before the forward, and "
           "keep the result until after Step:\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate);");
  LS_CHECK(training->phase() != TrainingStep::Phase::kUpdated,
           "ClipGradNorm after Step clips nothing: call it before Step");
  std::unordered_set<const Parameter*> clipped;
  for (const auto& p : parameters) clipped.insert(p.get());
  for (const auto& p : training->optimizer().parameters()) {
    LS_CHECK(
        clipped.contains(p.get()) || !p->grad().defined(),
        "ClipGradNorm: ", training->optimizer().name(), " updates '", p->name(),
        "' by this StepState, but it is not among the parameters to clip: pass the optimizer's "
        "own StepState, and parameters() of that optimizer or of the whole model");
  }
  std::vector<Tensor> grads;
  for (const auto& p : parameters) {
    const Tensor grad = p->grad();
    if (!grad.defined()) continue;
    grads.push_back(grad.Detach().Contiguous());
  }
  LS_CHECK(!grads.empty(), "ClipGradNorm: none of the ", parameters.size(),
           " parameters has a gradient: run Backward before it");
  if (PartExchange* const parts = PartsOf(parameters)) {
    NormOfParts(parameters, *parts, max_norm, state);
  } else {
    ops::GradNorm(grads, max_norm, state);
  }
  training->SetPhase(TrainingStep::Phase::kClipped);
}

}  // namespace lockstep::optim
