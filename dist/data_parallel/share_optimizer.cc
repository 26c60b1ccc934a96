#include "dist/data_parallel/share_optimizer.h"

#include <vector>

#include "dist/groups/agreement.h"

namespace lockstep::dist {

void ShareOptimizer(ProcessGroup& group, optim::Optimizer& optimizer) {
  const NamedTensors state = optimizer.NamedState();
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : state) tensors.push_back(tensor);
  BroadcastTensors(group, tensors);
  optimizer.LoadState(state);
}

}  // namespace lockstep::dist
