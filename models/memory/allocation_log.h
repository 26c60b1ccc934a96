// Which memory a step would take: what memory_plan.cc records on the meta device, and sums up.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/meta_memory.h"
#include "models/memory/memory_plan.h"

namespace lockstep::models {

// The rows of a plan. Some are also names of allocations (MetaMemoryLabel).
inline constexpr std::array<std::pair<std::string_view, int64_t MemoryKinds::*>, 7> kMemoryKinds = {
    {
        {"parameters", &MemoryKinds::parameters},
        {"gradients", &MemoryKinds::gradients},
        {"optimizer", &MemoryKinds::optimizer},
        {"activations", &MemoryKinds::activations},
        {"buckets", &MemoryKinds::buckets},
        {"gathers", &MemoryKinds::gathers},
        {"workspace", &MemoryKinds::workspace},
    }};

// A log of allocations. The kind of one follows from its name, or else from how long it lives, so
// sums are taken at the end.
class AllocationLog : public MetaMemoryListener {
 public:
  using Kind = int64_t MemoryKinds::*;

  explicit AllocationLog(Device device) : MetaMemoryListener(device) {}

  void OnAllocate(const void* id, int64_t bytes) override;
  void OnFree(const void* id) override;

  // What is on the host now stays there.
  void NoteKeptOnHost() { host_kept_ = host_; }
  // A position in the log.
  size_t Now() const { return blocks_.size(); }
  // Sets the kind of the nameless blocks that were allocated since then and are still alive.
  void SetKind(size_t since, Kind kind);
  // Forgets what happened before, except for the blocks that are still alive.
  void Begin();

  // From now on the allocator's pools are those of a CUDA graph.
  void BeginGraph() { graph_ = events_.size(); }
  // What comes now is an evaluation, and cannot use what graphs keep.
  void EndSteps() { end_ = events_.size(); }

  // By kind, on the host, and as the device's allocator takes it.
  MemoryPlan Plan() const;

 private:
  struct Block {
    int64_t bytes;
    Kind kind;
    bool named;
  };
  struct Entry {
    size_t block;
    bool taken;
  };

  static Kind KindNamed(std::string_view name);
  int64_t ReservedByCpu() const;
  int64_t ReservedByGpu() const;
  int64_t SegmentsOfGpu(std::span<const Entry> events) const;

  std::unordered_map<const void*, size_t> live_;
  std::unordered_map<const void*, int64_t> on_host_;
  int64_t host_ = 0, host_most_ = 0, host_kept_ = 0;
  std::vector<Block> blocks_;
  std::vector<Entry> events_;
  size_t graph_ = 0, end_ = std::numeric_limits<size_t>::max();
};

}  // namespace lockstep::models
