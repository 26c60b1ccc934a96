#include "dist/groups/planned_group.h"

#include "dist/control/control_plane.h"

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
  explicit PlannedGroup(int size)
      : ProcessGroup(/*rank=*/0, size, {.name = "planned"}, /*control=*/nullptr) {}
  Device device() const override { return kMeta; }
  void CheckInStep() override {}
  void Abort(const std::string&) override {}
  std::shared_ptr<ProcessGroup> Duplicate(const std::string&) override {
    return std::make_shared<PlannedGroup>(size());
  }

 private:
  WorkPtr Submit(Call call) override { return std::make_shared<PlannedWork>(call.collective); }
};

}  // namespace

std::shared_ptr<ProcessGroup> MakePlannedGroup(int size) {
  return std::make_shared<PlannedGroup>(size);
}

}  // namespace lockstep::dist
