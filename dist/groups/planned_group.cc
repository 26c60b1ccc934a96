#include "dist/groups/planned_group.h"

namespace lockstep::dist {
namespace {

class PlannedWork : public Work {
 public:
  explicit PlannedWork(const Collective& operation) : Work(operation) {}
  void Wait() override {}
  void Synchronize() override {}
  bool Done() const override { return true; }
  std::optional<Span> span() const override { return std::nullopt; }
};

class PlannedGroup : public ProcessGroup {
 public:
  explicit PlannedGroup(int size) : ProcessGroup(size, {.name = "planned", .device = kMeta}) {}
  Device device() const override { return kMeta; }
  void CheckInStep() override {}
  void Abort(const std::string&) override {}
  std::shared_ptr<ProcessGroup> Split(const std::string&, const std::vector<int>& ranks) override {
    return std::make_shared<PlannedGroup>(static_cast<int>(ranks.size()));
  }

 private:
  WorkPtr Submit(Call call) override { return std::make_shared<PlannedWork>(call.collective); }
  std::shared_ptr<ProcessGroup> MakePart(std::vector<int> members, const GroupOptions&) override {
    return std::make_shared<PlannedGroup>(static_cast<int>(members.size()));
  }
};

}  // namespace

std::shared_ptr<ProcessGroup> MakePlannedGroup(int size) {
  return std::make_shared<PlannedGroup>(size);
}

}  // namespace lockstep::dist
