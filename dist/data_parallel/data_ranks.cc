#include "dist/data_parallel/data_ranks.h"

#include <exception>

#include "dist/groups/agreement.h"

namespace lockstep::dist {

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

std::vector<std::vector<double>> DataRanks::Gather(std::span<const double> values) {
  if (control_) return GatherValues(*control_, values);
  return {std::vector<double>(values.begin(), values.end())};
}

double DataRanks::Sum(double value) {
  double sum = 0;
  for (const auto& row : Gather(std::span<const double>(&value, 1))) sum += row[0];
  return sum;
}

int64_t DataRanks::Sum(int64_t value) {
  if (!control_) return value;
  int64_t sum = 0;
  for (const auto& row : GatherValues(*control_, std::span<const int64_t>(&value, 1))) {
    sum += row[0];
  }
  return sum;
}

void DataRanks::SumInPlace(std::vector<double>* values) {
  if (!control_) return;
  const Tensor sums = Tensor::FromVector<double>(*values, {static_cast<int64_t>(values->size())},
                                                 control_->device());
  control_->AllReduce(sums)->Synchronize();
  *values = sums.ToVector<double>();
}

}  // namespace lockstep::dist
