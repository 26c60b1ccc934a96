// What a rank of a pipeline asks of the groups between it and its neighbours.
#include "dist/pipeline/pipeline_edges.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/dist/gpu_ranks.h"

namespace lockstep::dist {
namespace {

struct Asked {
  std::vector<int> most_blocks;  // of the group of each edge
  int receives = 0;              // that were posted
};

class DoneWork : public Work {
 public:
  explicit DoneWork(const Collective& operation) : Work(operation) {}
  void Wait() override {}
  void Synchronize() override {}
  bool Done() const override { return true; }
  std::optional<Span> span() const override { return std::nullopt; }
};

// The first of two ranks, without the other: its calls are noted, and done at once.
class NotedGroup : public ProcessGroup {
 public:
  NotedGroup(Device device, Asked* asked)
      : ProcessGroup(/*size=*/2, /*rank=*/0, {.device = device}), asked_(asked) {}
  Device device() const override { return options().device; }
  void CheckInStep() override {}
  void Abort(const std::string&) override {}
  std::shared_ptr<ProcessGroup> Split(const std::string&, const std::vector<int>&,
                                      int most_blocks) override {
    asked_->most_blocks.push_back(most_blocks);
    return std::make_shared<NotedGroup>(device(), asked_);
  }

 private:
  WorkPtr Submit(Call call) override {
    asked_->receives += static_cast<int>(
        std::ranges::count(call.transfers, Transfer::Direction::kReceive, &Transfer::direction));
    return std::make_shared<DoneWork>(call.collective);
  }
  std::shared_ptr<ProcessGroup> MakePart(std::vector<int>, const GroupOptions&) override {
    return nullptr;  // Split makes all parts
  }

  Asked* const asked_;
};

// `ahead`: the receives that are posted before what they bring is needed.
void ExpectPosted(Device device, int ahead) {
  Asked asked;
  NotedGroup ranks(device, &asked);
  const PipelineSchedule schedule = AddTransfers(MakeSchedule(PipelineKind::k1F1B, 2, 6));
  PipelineEdges edges(&ranks, schedule);
  EXPECT_EQ(asked.most_blocks, std::vector<int>(2, 4));
  edges.Begin(schedule, {{2, 3}, DType::kF32});
  int taken = 0;
  EXPECT_EQ(asked.receives, ahead);
  for (const PipelineAction& action : schedule.actions[0]) {
    if (!action.is_receive()) continue;
    edges.Receive(action);
    EXPECT_EQ(asked.receives, std::min(++taken + ahead, 6));
  }
  EXPECT_EQ(taken, 6);
  edges.End();
}

TEST(PipelineEdges, PostReceivesAheadOnHosts) { ExpectPosted(kCpu, 2); }

// There each one that is posted keeps multiprocessors from computing until it is sent.
TEST(PipelineEdges, PostOneReceiveAheadOnGpus) {
  SKIP_WITHOUT_GPUS(1);
  ExpectPosted({DeviceType::kCuda, 0}, 1);
}

}  // namespace
}  // namespace lockstep::dist
