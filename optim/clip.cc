#include "optim/clip.h"

#include <unordered_set>
#include <vector>

#include "kernels/global_norm/global_norm.h"

namespace lockstep::optim {

namespace {

// As ops::GradNorm, where ranks have parts of the gradients: each sums the chunks that it has, and
// the chunks of whole gradients are added in their order.
void NormOfParts(std::span<const std::shared_ptr<Parameter>> parameters, double max_norm,
                 const StepState& state) {
  LS_CHECK(max_norm >= 0, "ClipGradNorm: max_norm must be at least 0 (0 = measure only), got ",
           max_norm);
  int64_t chunks = 0;
  for (const auto& p : parameters) {
    if (p->grad().defined()) chunks += GradNormChunks(p->logical_shape().numel());
  }
  const Tensor sums = Tensor::Zeros({chunks}, DType::kF64, state.device());
  const Stream stream = CurrentStream(state.device());
  PartExchange* exchange = nullptr;
  int64_t first = 0;  // chunk of the parameter
  for (const auto& p : parameters) {
    if (!p->grad().defined()) continue;
    const Tensor grad = p->grad().Detach().Contiguous();
    const auto& range = p->layout().range;
    const int64_t begin = range ? range->begin : 0;
    LS_CHECK(p->layout().cuts.empty() && (grad.numel() == 0 || begin % kGradNormChunk == 0) &&
                 p->exchange() != nullptr && (!exchange || exchange == p->exchange().get()),
             "ClipGradNorm: the parts of '", p->name(),
             "' are not made for a norm: all parameters are cut by one dist::FullyShard");
    exchange = p->exchange().get();
    if (grad.numel() > 0) {
      const int64_t mine = first + begin / kGradNormChunk;
      grad_norm_square_sums(stream, std::span(&grad, 1),
                            sums.Slice(0, mine, mine + GradNormChunks(grad.numel())));
    }
    first += GradNormChunks(p->logical_shape().numel());
  }
  exchange->Sum(sums);
  grad_norm_finish(stream, sums, max_norm, state.device_values());
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
    cut |= !p->layout().is_whole();
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
