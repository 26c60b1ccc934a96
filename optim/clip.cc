#include "optim/clip.h"

#include <unordered_set>
#include <vector>

#include "kernels/global_norm/global_norm.h"
#include "optim/norm_parts.h"

namespace lockstep::optim {

namespace {

// Sums the squares of a gradient, in its chunks, into `sums` of all chunks from `at` on.
void SumSquares(const Tensor& grad, const Tensor& sums, int64_t at) {
  if (grad.numel() == 0) return;
  grad_norm_square_sums(CurrentStream(grad.device()), std::span(&grad, 1),
                        sums.Slice(0, at, at + GradNormChunks(grad.numel())));
}

const NormParts* PartsOf(const Parameter& p) {
  return dynamic_cast<const NormParts*>(p.exchange().get());
}

// Where each parameter's chunks begin, and, last, how many there are.
std::vector<int64_t> FirstChunks(std::span<const std::shared_ptr<Parameter>> parameters) {
  std::vector<int64_t> first = {0};
  for (const auto& p : parameters) {
    const NormParts* parts = PartsOf(*p);
    const int64_t n = parts ? parts->PartsOf(*p).all : 1;
    first.push_back(first.back() +
                    (p->grad().defined() ? n * GradNormChunks(p->logical_shape().numel() / n) : 0));
  }
  return first;
}

// Of a parameter that is cut, or would be on more ranks: the chunks that this rank has.
void SumPart(const Parameter& p, const Tensor& sums, int64_t first) {
  const Tensor grad = p.grad().Detach().Contiguous();
  if (const NormParts* parts = PartsOf(p)) {
    const auto [all, begin, own] = parts->PartsOf(p);
    const int64_t chunks = GradNormChunks(p.logical_shape().numel() / all);
    for (int64_t j = 0; j < own; ++j) {
      SumSquares(parts->PartOf(p, grad, j), sums, first + (begin + j) * chunks);
    }
    return;
  }
  if (auto* runs = dynamic_cast<NormRuns*>(p.exchange().get())) {
    const int64_t chunks = GradNormChunks(p.logical_shape().numel());
    runs->SumSquares(p, grad, sums.Slice(0, first, first + chunks));
    return;
  }
  const auto& range = p.layout().range;
  const int64_t begin = range ? range->begin : 0;
  LS_CHECK(
      p.layout().cuts.empty() && (grad.numel() == 0 || begin % kGradNormChunk == 0),
      "ClipGradNorm: the parts of '", p.name(),
      "' are not made for a norm: parameters are cut by dist::FullyShard or dist::Parallelize");
  SumSquares(grad, sums, first + begin / kGradNormChunk);
}

// As ops::GradNorm, where ranks have parts of the gradients: each sums the chunks that it has, and
// the chunks of whole gradients are added in their order. What every rank has whole counts once.
void NormOfParts(std::span<const std::shared_ptr<Parameter>> parameters, double max_norm,
                 const StepState& state) {
  LS_CHECK(max_norm >= 0, "ClipGradNorm: max_norm must be at least 0 (0 = measure only), got ",
           max_norm);
  const std::vector<int64_t> first = FirstChunks(parameters);
  const Tensor sums = Tensor::Zeros({first.back()}, DType::kF64, state.device());
  PartExchange* exchange = nullptr;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    if (!p.grad().defined() || !p.exchange()) continue;
    LS_CHECK(!exchange || exchange == p.exchange().get(), "ClipGradNorm: '", p.name(),
             "' is shared out by other means than the parameters before it: all parameters are cut "
             "by one dist::FullyShard, or one dist::Parallelize");
    exchange = p.exchange().get();
    SumPart(p, sums, first[i]);
  }
  if (exchange) exchange->Sum(sums);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    if (p.grad().defined() && !p.exchange()) SumPart(p, sums, first[i]);
  }
  grad_norm_finish(CurrentStream(state.device()), sums, max_norm, state.device_values());
}

}  // namespace

void ClipGradNorm(std::span<const std::shared_ptr<Parameter>> parameters, double max_norm,
                  const StepState& state) {
  LS_CHECK(state.updater() != nullptr,
           "ClipGradNorm: no step is under way on this StepState. Begin it before the forward, and "
           "keep the result until after Step:\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate);");
  LS_CHECK(state.phase() != StepPhase::kUpdated,
           "ClipGradNorm after Step clips nothing: call it before Step");
  std::unordered_set<const Parameter*> clipped;
  for (const auto& p : parameters) clipped.insert(p.get());
  for (const auto& p : state.updater()->parameters()) {
    LS_CHECK(
        clipped.contains(p.get()) || !p->grad().defined(),
        "ClipGradNorm: ", state.updater()->name(), " updates '", p->name(),
        "' by this StepState, but it is not among the parameters to clip: pass the optimizer's "
        "own StepState, and parameters() of that optimizer or of the whole model");
  }
  std::vector<Tensor> grads;
  bool cut = false;
  for (const auto& p : parameters) {
    const Tensor grad = p->grad();
    if (!grad.defined()) continue;
    grads.push_back(grad.Detach().Contiguous());
    cut |= !p->layout().is_whole() || PartsOf(*p) != nullptr;
  }
  LS_CHECK(!grads.empty(), "ClipGradNorm: none of the ", parameters.size(),
           " parameters has a gradient: run Backward before it");
  if (cut) {
    NormOfParts(parameters, max_norm, state);
  } else {
    ops::GradNorm(grads, max_norm, state);
  }
  state.SetPhase(StepPhase::kClipped);
}

}  // namespace lockstep::optim
