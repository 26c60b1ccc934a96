#include "dist/data_parallel/data_parallel.h"

#include <algorithm>

#include "dist/user_call.h"
#include "nn/state.h"

namespace lockstep::dist {

ProcessGroup* AlignReplicas(ProcessGroup* group, const Module& module, const char* name) {
  for (const auto& p : module.Parameters()) {
    (void)SumDType(*p);  // throws where the user asked for another
    for (const ShardCut& cut : p->layout().cuts) {
      LS_CHECK(cut.axis != "ep", "the ranks do not have the same experts in '", p->name(),
               "', so DataParallel would mix them up: use dist::ExpertParallel after ShareExperts");
    }
  }
  if (!group) return nullptr;
  const UserCall call(name);
  CheckSameShape(*group, module);
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : nn::StateOf(module)) tensors.push_back(tensor);
  BroadcastTensors(*group, tensors);
  return group;
}

DataParallel::DataParallel(ProcessGroup* group, Module& module, ReducerOptions options,
                           std::shared_ptr<ProcessGroup> control)
    : DataRanks(AlignReplicas(group, module, "DataParallel"), std::move(control)),
      module_(module),
      reducer_(MakeReducer(group, module, std::move(options))) {}

Reducer DataParallel::MakeReducer(ProcessGroup* group, Module& module, ReducerOptions options) {
  const int64_t micro_batches = std::max<int64_t>(options.micro_batches, SizeOf(group));
  options.tied = TiedApart(module, options.sum, micro_batches);
  return Reducer(group, GradientParameters(module), std::move(options));
}

void DataParallel::BeginMicroBatch(bool last) {
  no_sync_.reset();
  if (!last) no_sync_.emplace(reducer_);
}

BackwardObserver* DataParallel::ObserveOnlyGiven() {
  StopObserving(&reducer_, GradientParameters(module_));
  return &reducer_;
}

void DataParallel::CheckWeights(const std::string& when) {
  const UserCall call("CheckWeights");
  if (control()) CheckSameBits(*control(), "the weights " + when, nn::StateOf(module_));
}

void DataParallel::CheckGradients() {
  const UserCall call("CheckGradients");
  if (control()) dist::CheckGradients(*control(), module_);
}

}  // namespace lockstep::dist
