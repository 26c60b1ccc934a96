#include "models/memory/allocation_log.h"

#include <algorithm>
#include <map>

#include "core/cuda/block_pool.h"
#include "core/error.h"
#include "core/round_up.h"

namespace lockstep::models {

void AllocationLog::OnAllocate(const void* id, int64_t bytes) {
  const char* const name = MetaMemoryLabel::OfThisThread();
  if (name != nullptr && name == std::string_view("host")) {
    on_host_[id] = bytes;
    host_most_ = std::max(host_most_, host_ += bytes);
    return;
  }
  live_[id] = blocks_.size();
  events_.push_back({blocks_.size(), true});
  blocks_.push_back({bytes, name ? KindNamed(name) : &MemoryKinds::workspace, name != nullptr});
}

void AllocationLog::OnFree(const void* id) {
  if (const auto host = on_host_.extract(id)) {
    host_ -= host.mapped();
    return;
  }
  const auto it = live_.find(id);
  if (it == live_.end()) return;
  events_.push_back({it->second, false});
  live_.erase(it);
}

void AllocationLog::SetKind(size_t since, Kind kind) {
  for (const auto& [id, block] : live_) {
    if (block >= since && !blocks_[block].named) blocks_[block].kind = kind;
  }
}

void AllocationLog::Begin() {
  events_.clear();
  host_most_ = host_;
  for (const auto& [id, block] : live_) events_.push_back({block, true});
  std::ranges::sort(events_, {}, &Entry::block);
}

MemoryPlan AllocationLog::Plan() const {
  MemoryPlan plan;
  MemoryKinds now;
  for (size_t i = 0; i < events_.size(); ++i) {
    const Entry& e = events_[i];
    const Block& block = blocks_[e.block];
    now.*block.kind += e.taken ? block.bytes : -block.bytes;
    if (i >= end_) {
      plan.evaluating = std::max(plan.evaluating, now.total());
      continue;
    }
    for (const auto& [name, kind] : kMemoryKinds) {
      plan.largest.*kind = std::max(plan.largest.*kind, now.*kind);
    }
    if (now.total() > plan.peak.total()) plan.peak = now;
  }
  plan.reserved = device().is_cpu() ? ReservedByCpu() : ReservedByGpu();
  plan.graphs = graph_ > 0;
  if (plan.graphs) plan.evaluation = SegmentsOfGpu(std::span(events_).subspan(end_));
  plan.host = host_most_;
  plan.host_kept = host_kept_;
  return plan;
}

AllocationLog::Kind AllocationLog::KindNamed(std::string_view name) {
  const auto it =
      std::ranges::find(kMemoryKinds, name, [](const auto& kind) { return kind.first; });
  LS_INVARIANT(it != kMemoryKinds.end(), "a memory plan has no row ", name);
  return it->second;
}

// A freed block serves only its size class.
int64_t AllocationLog::ReservedByCpu() const {
  std::map<int64_t, std::pair<int64_t, int64_t>> classes;  // by size: blocks in use, and the most
  for (const Entry& e : events_) {
    auto& [used, most] = classes[CpuSizeClass(blocks_[e.block].bytes)];
    used += e.taken ? 1 : -1;
    most = std::max(most, used);
  }
  int64_t reserved = 0;
  for (const auto& [size, blocks] : classes) reserved += size * blocks.second;
  return reserved;
}

// What is older than a graph is not in its pools, and counts as requested.
int64_t AllocationLog::ReservedByGpu() const {
  int64_t older = 0;
  for (const Entry& e : std::span(events_).first(graph_)) {
    older += e.taken ? blocks_[e.block].bytes : -blocks_[e.block].bytes;
  }
  const size_t end = std::min(end_, events_.size());
  return older + SegmentsOfGpu(std::span(events_).subspan(graph_, end - graph_));
}

// In pools of their own, as if all work were on one stream.
int64_t AllocationLog::SegmentsOfGpu(std::span<const Entry> events) const {
  cuda::BlockPool small(true), large(false);
  std::unordered_map<size_t, cuda::BlockPool::Block*> taken;
  int64_t reserved = 0;
  for (const Entry& e : events) {
    if (blocks_[e.block].bytes == 0) continue;
    const int64_t size = cuda::BlockPool::BlockSize(blocks_[e.block].bytes);
    cuda::BlockPool& pool = cuda::BlockPool::IsSmall(size) ? small : large;
    if (!e.taken) {
      if (auto node = taken.extract(e.block)) pool.Give(node.mapped());
      continue;
    }
    cuda::BlockPool::Block* block = pool.Take(size);
    if (block == nullptr) {
      const int64_t segment = cuda::BlockPool::SegmentSize(size);
      // An address that is never used, and not next to another segment's.
      pool.AddSegment(reinterpret_cast<char*>(2 * reserved), segment);
      reserved += segment;
      block = pool.Take(size);
    }
    taken[e.block] = block;
  }
  for (const auto& [index, block] : taken) {
    (cuda::BlockPool::IsSmall(cuda::BlockPool::BlockSize(blocks_[index].bytes)) ? small : large)
        .Give(block);
  }
  return reserved;
}

}  // namespace lockstep::models
