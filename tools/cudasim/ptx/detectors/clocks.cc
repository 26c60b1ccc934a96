#include "tools/cudasim/ptx/detectors/clocks.h"

#include <algorithm>

namespace cudasim {
namespace ptx {
namespace {

// Adds what a thread knows of itself to what all may know of its lane.
void AddOwn(ThreadClock* clock, uint32_t lanes) {
  for (Knowledge& part : clock->parts) {
    for (int lane : LanesOf(lanes)) part.lanes[lane] = std::max(part.lanes[lane], part.own);
    part.own = 0;
  }
}

}  // namespace

void Knowledge::Join(const Knowledge& other) {
  for (int k = 0; k < kLanes; ++k) lanes[k] = std::max(lanes[k], other.lanes[k]);
  for (int k = 0; k < kLanes; ++k) warps[k] = std::max(warps[k], other.warps[k]);
  own = std::max(own, other.own);
}

void ThreadClock::Join(const ThreadClock& other) {
  for (int part = 0; part < kParts; ++part) parts[part].Join(other.parts[part]);
  fenced |= other.fenced;
  seen = std::max(seen, other.seen);
}

void ThreadClock::Fence(Time now, bool for_all) {
  fenced = true;
  parts[kKnown].own = now;
  parts[kForBlock] = parts[kKnown];
  if (for_all) parts[kForAll] = parts[kKnown];
}

void Clocks::Begin(uint32_t block, size_t warps) {
  block_ = block;
  warps_.assign(warps, {});
  meetings_.fill({});
}

ThreadClock& Clocks::OwnOf(const Warp& warp, int lane) {
  WarpClock& clock = warps_[warp.number];
  if (clock.lanes.empty()) clock.lanes.assign(kLanes, clock.common);
  return clock.lanes[lane];
}

ThreadClock Clocks::Joined(const Warp& warp, uint32_t members) const {
  const WarpClock& clock = warps_[warp.number];
  const auto with_own = [&](ThreadClock one, uint32_t lanes) {
    one.parts[ThreadClock::kKnown].own = grid_->now;
    AddOwn(&one, lanes);
    return one;
  };
  if (clock.lanes.empty() && members == warp.live) return with_own(clock.common, members);
  ThreadClock all;
  for (int lane : LanesOf(members)) all.Join(with_own(Of(warp, lane), uint32_t{1} << lane));
  return all;
}

void Clocks::Teach(const Warp& warp, uint32_t members, const ThreadClock& all) {
  if (members == warp.live) {
    warps_[warp.number].common = all;
    warps_[warp.number].lanes.clear();
  } else {
    for (int lane : LanesOf(members)) OwnOf(warp, lane) = all;
  }
}

void Clocks::MeetLanes(const Warp& warp, uint32_t members) {
  Teach(warp, members, Joined(warp, members));
  ++grid_->now;
}

void Clocks::Fence(const Warp& warp, bool for_all) {
  WarpClock& clock = warps_[warp.number];
  if (clock.lanes.empty() && warp.mask == warp.live) {
    clock.common.Fence(grid_->now, for_all);
  } else {
    for (int lane : LanesOf(warp.mask)) OwnOf(warp, lane).Fence(grid_->now, for_all);
  }
  ++grid_->now;
}

void Clocks::Arrive(const Warp& warp, int barrier, bool waits) {
  ThreadClock clock = Joined(warp, warp.mask);
  if (waits) Teach(warp, warp.mask, clock);
  ++grid_->now;
  // Others know as much of the warp as of the least known of its lanes.
  for (Knowledge& part : clock.parts) {
    Time least = ~Time{0};
    for (int lane : LanesOf(warp.mask)) least = std::min(least, part.lanes[lane]);
    part.warps[warp.number] = std::max(part.warps[warp.number], least);
    part.lanes = {};
  }
  meetings_[barrier].Join(clock);
}

void Clocks::Leave(const Warp& warp, int barrier) {
  WarpClock& clock = warps_[warp.number];
  clock.common.Join(meetings_[barrier]);
  for (ThreadClock& lane : clock.lanes) lane.Join(meetings_[barrier]);
}

void Clocks::Acquire(const Warp& warp, int lane, uint64_t address) {
  if (grid_->releases.empty()) return;
  const auto found = grid_->releases.find(address);
  if (found == grid_->releases.end() || found->second <= Of(warp, lane).seen) return;
  OwnOf(warp, lane).seen = found->second;
}

void Clocks::Release(const Warp& warp, int lane, uint64_t address, bool fence, bool for_all) {
  if (!fence && !Of(warp, lane).fenced) return;
  ThreadClock clock = Of(warp, lane);
  if (fence) clock.Fence(grid_->now, for_all);
  AddOwn(&clock, uint32_t{1} << lane);
  const Publication publication{grid_->now, warp.number, clock.parts[ThreadClock::kForBlock],
                                for_all ? clock.parts[ThreadClock::kForAll] : Knowledge{}};
  grid_->releases[address] = grid_->now++;
  std::vector<Publication>& published = grid_->published[block_];
  // A loop that takes a lock again and again would publish the same each time.
  if (!published.empty() && published.back().warp == warp.number &&
      published.back().for_block == publication.for_block &&
      published.back().for_all == publication.for_all) {
    return;
  }
  published.push_back(publication);
}

bool Clocks::Knows(const Warp& warp, int lane, Time time, uint32_t block, uint32_t thread) const {
  const uint32_t its_warp = thread / kLanes, its_lane = thread % kLanes;
  const ThreadClock& clock = Of(warp, lane);
  if (block == block_) {
    if (thread == warp.number * kLanes + static_cast<uint32_t>(lane)) return true;
    const Knowledge& known = clock.parts[ThreadClock::kKnown];
    if (time <= (its_warp == warp.number ? known.lanes[its_lane] : known.warps[its_warp])) {
      return true;
    }
  }
  const auto of_block = grid_->published.find(block);
  if (of_block == grid_->published.end()) return false;
  const std::vector<Publication>& published = of_block->second;
  return std::any_of(published.rbegin(), published.rend(), [&](const Publication& one) {
    if (one.time > clock.seen) return false;
    const Knowledge& part = block == block_ ? one.for_block : one.for_all;
    return time <= (its_warp == one.warp ? part.lanes[its_lane] : part.warps[its_warp]);
  });
}

}  // namespace ptx
}  // namespace cudasim
