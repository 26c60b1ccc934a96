#include "dist/data_parallel/sync_batch_norm.h"

#include "dist/groups/agreement.h"
#include "nn/vision/batch_norm.h"

namespace lockstep::dist {
namespace {

class GroupExchange : public BatchNormExchange {
 public:
  explicit GroupExchange(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  Tensor Gather(const Tensor& part) override { return GatherTensors(*group_, part); }

 private:
  const std::shared_ptr<ProcessGroup> group_;
};

}  // namespace

int64_t ConvertSyncBatchNorm(Module& module, ProcessGroup& group, const std::string& name) {
  const auto exchange = std::make_shared<GroupExchange>(group.Duplicate(name));
  int64_t count = 0;
  for (const auto& [path, child] : module.NamedModules()) {
    if (auto* norm = dynamic_cast<nn::BatchNorm*>(child)) {
      norm->SetExchange(exchange);
      ++count;
    }
  }
  return count;
}

}  // namespace lockstep::dist
