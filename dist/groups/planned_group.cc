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
  PlannedGroup(int size, int rank)
      : ProcessGroup(size, rank, {.name = "planned", .device = kMeta}) {}
  Device device() const override { return kMeta; }
  void CheckInStep() override {}
  void Abort(const std::string&) override {}
  std::shared_ptr<ProcessGroup> Split(const std::string&, const std::vector<int>& ranks,
                                      int) override {
    return std::make_shared<PlannedGroup>(static_cast<int>(ranks.size()), IndexOf(ranks, rank()));
  }

 private:
  WorkPtr Submit(Call call) override { return std::make_shared<PlannedWork>(call.collective); }
  std::shared_ptr<ProcessGroup> MakePart(std::vector<int> members, const GroupOptions&) override {
    const int rank = IndexOf(members, world_rank());
    return std::make_shared<PlannedGroup>(static_cast<int>(members.size()), rank);
  }
};

}  // namespace

std::shared_ptr<ProcessGroup> MakePlannedGroup(int size, int rank) {
  return std::make_shared<PlannedGroup>(size, rank);
}

}  // namespace lockstep::dist
