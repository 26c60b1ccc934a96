#include "dist/data_parallel/data_parallel.h"

#include <exception>

#include "nn/state.h"

namespace lockstep::dist {
namespace {

// Returns the group after the check and the copy, which must precede the reducer's construction.
ProcessGroup* Aligned(ProcessGroup* group, const Module& module) {
  if (!group) return nullptr;
  CheckSameShape(*group, module);
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : nn::StateOf(module)) tensors.push_back(tensor);
  BroadcastTensors(*group, tensors);
  return group;
}

}  // namespace

DataParallel::DataParallel(ProcessGroup* group, Module& module, ReducerOptions options,
                           std::shared_ptr<ProcessGroup> control)
    : exceptions_(std::uncaught_exceptions()),
      module_(module),
      group_(Aligned(group, module)),
      control_(control || !group ? std::move(control)
                                 : group->Duplicate(group->name() + ".control")),
      reducer_(group_, module.Parameters(), std::move(options)) {}

DataParallel::~DataParallel() {
  if (!control_ || std::uncaught_exceptions() > exceptions_) return;
  try {
    control_->Leave();  // not waited for: the reducer waits for its groups
  } catch (...) {       // the others learn of it; it does not matter to a rank that leaves
  }
}

void DataParallel::CheckWeights(const std::string& when) {
  if (control_) CheckSameBits(*control_, "the weights " + when, nn::StateOf(module_));
}

void DataParallel::CheckGradients() {
  if (control_) dist::CheckGradients(*control_, module_);
}

std::vector<std::vector<double>> DataParallel::Gather(std::span<const double> values) {
  if (control_) return GatherValues(*control_, values);
  return {std::vector<double>(values.begin(), values.end())};
}

double DataParallel::Sum(double value) {
  double sum = 0;
  for (const auto& row : Gather(std::span<const double>(&value, 1))) sum += row[0];
  return sum;
}

int64_t DataParallel::Sum(int64_t value) {
  if (!control_) return value;
  int64_t sum = 0;
  for (const auto& row : GatherValues(*control_, std::span<const int64_t>(&value, 1))) {
    sum += row[0];
  }
  return sum;
}

void DataParallel::SumInPlace(std::vector<double>* values) {
  if (!control_) return;
  const Tensor sums = Tensor::FromVector<double>(*values, {static_cast<int64_t>(values->size())},
                                                 control_->device());
  control_->AllReduce(sums)->Synchronize();
  *values = sums.ToVector<double>();
}

}  // namespace lockstep::dist
