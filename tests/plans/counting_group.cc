#include "tests/plans/counting_group.h"

#include <vector>

namespace lockstep::dist {
namespace {

class CountingGroup : public ProcessGroup {
 public:
  CountingGroup(std::shared_ptr<ProcessGroup> group, std::shared_ptr<Traffic> traffic)
      : ProcessGroup(group->members(), group->options(), group->control()),
        group_(std::move(group)),
        traffic_(std::move(traffic)) {}

  Device device() const override { return group_->device(); }
  void CheckInStep() override { group_->CheckInStep(); }
  WorkPtr Leave() override { return group_->Leave(); }
  void Abort(const std::string& reason) override { group_->Abort(reason); }
  std::shared_ptr<ProcessGroup> Split(const std::string& name, const std::vector<int>& ranks,
                                      int most_blocks) override {
    return MakeCountingGroup(group_->Split(name, ranks, most_blocks), traffic_);
  }

 private:
  WorkPtr Submit(Call call) override {
    traffic_->Add(name(), call.purpose, BytesOf(call));
    const Collective& c = call.collective;
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        return group_->AllReduce(call.output, c.op, call.purpose);
      case CollectiveKind::kReduceScatter:
        return group_->ReduceScatter(call.input, call.output, c.op, call.purpose);
      case CollectiveKind::kAllGather:
        return group_->AllGather(call.input, call.output, call.purpose);
      case CollectiveKind::kBroadcast:
        return group_->Broadcast(call.output, call.root, call.purpose);
      case CollectiveKind::kAllToAll:
        if (c.count >= 0) {
          return group_->AllToAll(call.input, call.output, {}, {}, call.purpose);
        }
        return group_->AllToAll(call.input, call.output, call.input_counts, call.output_counts,
                                call.purpose);
      case CollectiveKind::kExchange:
        return group_->Exchange(std::move(call.transfers), call.purpose);
      case CollectiveKind::kBarrier:
        return group_->Barrier();
      case CollectiveKind::kLeave:
        break;
    }
    return group_->Leave();
  }

  std::shared_ptr<ProcessGroup> MakePart(std::vector<int>, const GroupOptions&) override {
    throw Error("a counting group is split by the group that it counts");
  }

  int64_t BytesOf(const Call& call) const {
    const int64_t others = size() - 1;
    int64_t bytes = 0;
    switch (call.collective.kind) {
      case CollectiveKind::kAllReduce:
        return 2 * others * call.output.bytes() / size();
      case CollectiveKind::kReduceScatter:
        return others * call.output.bytes();
      case CollectiveKind::kAllGather:
        return others * call.input.bytes();
      case CollectiveKind::kBroadcast:
        return call.root == rank() ? others * call.output.bytes() : 0;
      case CollectiveKind::kAllToAll:
        return call.input.bytes() -
               call.input_counts[static_cast<size_t>(rank())] * SizeOf(call.input.dtype());
      case CollectiveKind::kExchange:
        for (const Transfer& t : call.transfers) {
          if (t.direction == Transfer::Direction::kSend) bytes += t.tensor.bytes();
        }
        return bytes;
      case CollectiveKind::kBarrier:
      case CollectiveKind::kLeave:
        break;
    }
    return 0;
  }

  const std::shared_ptr<ProcessGroup> group_;
  const std::shared_ptr<Traffic> traffic_;
};

}  // namespace

void Traffic::Add(const std::string& group, const std::string& purpose, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bytes_[{group, purpose}] += bytes;
}

void Traffic::Clear() {
  const std::lock_guard<std::mutex> lock(mutex_);
  bytes_.clear();
}

std::map<Traffic::Key, int64_t> Traffic::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

std::shared_ptr<ProcessGroup> MakeCountingGroup(std::shared_ptr<ProcessGroup> group,
                                                std::shared_ptr<Traffic> traffic) {
  return std::make_shared<CountingGroup>(std::move(group), std::move(traffic));
}

}  // namespace lockstep::dist
