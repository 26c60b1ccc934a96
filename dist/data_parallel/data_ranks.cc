#include "dist/data_parallel/data_ranks.h"

#include <exception>

#include "core/autograd/engine.h"
#include "core/parameter.h"
#include "core/step_state.h"
#include "dist/groups/agreement.h"
#include "dist/user_call.h"
#include "optim/optimizer.h"

namespace lockstep::dist {

void StopObserving(BackwardObserver* observer,
                   std::span<const std::shared_ptr<Parameter>> parameters) {
  for (const auto& p : parameters) p->leaf().RemoveObserver(observer);
}

DataRanks::DataRanks(ProcessGroup* group, std::shared_ptr<ProcessGroup> control)
    : exceptions_(std::uncaught_exceptions()),
      rank_(RankIn(group)),
      size_(SizeOf(group)),
      control_(control || !group ? std::move(control)
                                 : group->Duplicate(group->name() + ".control")) {}

void DataRanks::LeaveControl(ProcessGroup* other) noexcept {
  if (std::uncaught_exceptions() > exceptions_) return;
  for (ProcessGroup* group : {control_.get(), other}) {
    try {
      if (group) group->Leave();  // not waited for: what sums the gradients waits for its groups
    } catch (...) {  // the others learn of it; it does not matter to a rank that leaves
    }
  }
}

double DataRanks::Backward(const Tensor& loss, int64_t samples, const optim::TrainingStep& training,
                           std::optional<int64_t> of_step) {
  const UserCall call("Backward");
  if (step_.id != training.id()) step_ = {.id = training.id()};
  StepSamples& step = step_;
  const int64_t planned = std::ssize(micro_order());
  LS_CHECK(step.micro_batches < planned, "Backward ", step.micro_batches + 1,
           " of this step, but it was planned with ", planned,
           " of this rank: say how many micro-batches a step has on all ranks together where the "
           "ranks are set up, as in\n"
           "  dist::DataParallel parallel(group.get(), model, {.micro_batches = ",
           size(), " * (micro-batches of each rank)});");
  LS_CHECK(samples >= 0, "a micro-batch of ", samples, " samples");
  LS_CHECK(loss.dtype() == AccumulationDType(loss.dtype()), "the loss is ", loss.dtype(),
           ", in which 1 / samples would be rounded: sum in f32, as loss.To(DType::kF32) does");
  const int64_t of_rank = of_step.value_or(samples * planned);
  const bool is_last = ++step.micro_batches == planned;
  step.seen += samples;
  if (step.micro_batches == 1) {
    step.of_rank = of_rank;
    step.of_all = updates_apart() ? of_rank : Sum(of_rank);
    LS_CHECK(step.of_all > 0, "the step has no samples on any rank");
  }
  LS_CHECK(of_rank == step.of_rank && (!is_last || step.seen == of_rank), "micro-batch ",
           step.micro_batches, " of ", planned, " has ", samples, " samples, which makes ",
           step.seen, ", but in the whole step this rank was to have ", step.of_rank,
           ": where micro-batches have different numbers of samples, give their sum with each:\n"
           "  parallel.Backward(loss, samples, training, samples_of_all_my_micro_batches);");
  BeginMicroBatch(is_last);
  const auto divisor = static_cast<double>(step.of_all);
  const Tensor root = training.Root(1 / divisor, loss.dtype());
  if (const StepState* const state = StepUnderWay()) state->SetRootShared();
  lockstep::Backward(loss, root.View(loss.shape()));
  return divisor;
}

std::vector<std::vector<double>> DataRanks::Gather(std::span<const double> values) {
  const UserCall call("Gather");
  if (control_) return GatherValues(*control_, values);
  return {std::vector<double>(values.begin(), values.end())};
}

double DataRanks::Sum(double value) {
  const UserCall call("Sum");
  double sum = 0;
  for (const auto& row : Gather(std::span<const double>(&value, 1))) sum += row[0];
  return sum;
}

int64_t DataRanks::Sum(int64_t value) {
  if (!control_) return value;
  const UserCall call("Sum");
  int64_t sum = 0;
  for (const auto& row : GatherValues(*control_, std::span<const int64_t>(&value, 1))) {
    sum += row[0];
  }
  return sum;
}

bool DataRanks::Any(bool value) {
  const UserCall call("Any");
  return Sum(int64_t{value}) > 0;
}

void DataRanks::SumInPlace(std::vector<double>* values) {
  if (!control_) return;
  const UserCall call("SumInPlace");
  const Tensor sums = Tensor::FromVector<double>(*values, {static_cast<int64_t>(values->size())},
                                                 control_->device());
  control_->AllReduce(sums)->Synchronize();
  *values = sums.ToVector<double>();
}

}  // namespace lockstep::dist
