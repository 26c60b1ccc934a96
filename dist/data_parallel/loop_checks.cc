#include "dist/data_parallel/loop_checks.h"

#include <algorithm>
#include <cmath>

#include "core/autograd/root_gradient.h"
#include "core/step_state.h"
#include "optim/optimizer.h"

namespace lockstep::dist {
namespace {

// Whether the root gradient is 1, and was not made of the samples of all ranks.
bool IsOne(const StepState& step) {
  const Tensor root = RootGradient();
  if (step.root_shared() || !root.defined() || root.device().is_meta()) return false;
  const double scale = step.loss_scaling() ? step.Read().loss_scale.scale : 1;
  return std::abs(root.Item() / scale - 1) < 1e-4;
}

}  // namespace

void CheckShares(const BackwardPlan& plan, int rank, int64_t ranks, bool is_first) {
  const StepState* const step = StepUnderWay();
  const bool is_mean = plan.default_root_grad || (is_first && step && IsOne(*step));
  LS_CHECK(!is_mean, "gradients are summed over the ", ranks, " ranks, so that of a mean over ",
           "the samples of rank ", rank, " is ", ranks,
           " times too large: make the loss a sum, and write\n"
           "  parallel.Backward(loss, samples, training);\n"
           "where `samples` are those of the loss and `training` is what BeginStep returned: it "
           "divides by the samples (or tokens) of all ranks");
  LS_CHECK(!step || !step->drew_without_first_sample(), "rank ", rank,
           " drew the same dropout masks as the ",
           "other ranks: say which samples of the step it has, as in\n"
           "  const auto training = optimizer.BeginStep(state, step, learning_rate,\n"
           "                                            {.first_sample = rank * batch_size});");
}

void ThrowHasGradient(const Parameter& parameter, const std::string& how) {
  const StepState* const step = StepUnderWay();
  const auto* const training = step ? optim::TrainingStep::On(*step) : nullptr;
  // BeginStep has found no gradients of the step's optimizer.
  const bool in_step = training && training->phase() != optim::TrainingStep::Phase::kUpdated &&
                       std::ranges::any_of(training->optimizer().parameters(),
                                           [&](const auto& p) { return p.get() == &parameter; });
  throw ArgumentError(
      in_step ? StrCat("a further Backward in this step, whose gradients ('", parameter.name(),
                       "') have been summed over the ranks already: ", how)
              : StrCat("the parameter '", parameter.name(),
                       "' already has a gradient at the start of the step: call ZeroGrad after "
                       "each update, and before making the model data parallel. Or, if this is a "
                       "further micro-batch of the step, ",
                       how));
}

void CheckTrainable(const Parameter& parameter, bool was_trainable, const char* what) {
  LS_CHECK(parameter.trainable() == was_trainable, "the parameter '", parameter.name(), "' was ",
           was_trainable ? "frozen" : "made trainable", " after ", what, " was made, which ",
           was_trainable ? "sums" : "does not sum",
           " its gradient over the ranks. On every rank, before ", what, " is made, write\n",
           "  parameter->SetTrainable(", was_trainable ? "false" : "true", ");\n", "or make ", what,
           " and the optimizer anew after it");
}

}  // namespace lockstep::dist
