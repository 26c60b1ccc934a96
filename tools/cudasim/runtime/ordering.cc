// The check that uses of the same memory in different streams are ordered: by the streams
// themselves, by events, or by the host's waiting. It looks at what was enqueued, not at when it
// ran, so it finds a missing event even if the timing was lucky.
#include <algorithm>

#include "state.h"

namespace cudasim::runtime {
namespace {

constexpr size_t kMaxUses = 256;  // Per block; then the oldest are forgotten.

std::string Verb(bool write) { return write ? "writes" : "reads"; }

// A kernel's pointer says where its memory begins, but not how much is used.
bool Overlap(const Use& a, const Use& b) { return a.begin < b.end && b.begin < a.end; }

// Whether anything that conflicts with `old` also conflicts with `now`, which is after it.
bool Covers(const Use& now, const Use& old) {
  return (now.write || !old.write) && now.begin <= old.begin && old.end <= now.end;
}

void CheckBlock(const Op& op, Block* block, const Use& use, std::vector<std::string>* bugs) {
  for (const Use& old : block->uses) {
    if (!(use.write || old.write) || !Overlap(use, old)) continue;
    if (old.tick <= op.clock.Of(old.stream)) continue;
    bugs->push_back(use.what + " (stream " + std::to_string(use.stream) + ") " + Verb(use.write) +
                    " memory that " + old.what + " (stream " + std::to_string(old.stream) + ") " +
                    Verb(old.write) +
                    ", and nothing orders the two: record an event after the earlier one and let "
                    "the later stream wait for it.\n  " +
                    DescribeWithSites(*block));
    break;
  }
  std::erase_if(block->uses, [&](const Use& old) {
    return old.tick <= op.clock.Of(old.stream) && Covers(use, old);
  });
  if (block->uses.size() >= kMaxUses) block->uses.erase(block->uses.begin());
  block->uses.push_back(use);
}

}  // namespace

void CheckOrdering(const Lock&, const Op& op, std::vector<std::string>* bugs) {
  for (const Range& range : op.work.ranges) {
    if (range.size == 0) continue;
    std::shared_ptr<Block> block = FindBlock(range.address);
    if (block == nullptr) block = FindFreed(range.address);
    if (block == nullptr) continue;
    if (block->freed) {
      // A kernel may be given an address before its data, from which it counts: what it accesses is
      // checked while it runs.
      if (op.work.type == cudaGraphNodeTypeKernel) continue;
      bugs->push_back(op.work.what + " uses memory that was freed: " + DescribeWithSites(*block));
      continue;
    }
    Use use;
    use.begin = reinterpret_cast<uintptr_t>(range.address);
    use.end = std::min(use.begin + range.size, block->end());
    use.write = range.write;
    use.stream = op.stream->id;
    use.tick = op.clock.Of(op.stream->id);
    use.what = op.work.what;
    CheckBlock(op, block.get(), use, bugs);
  }
}

}  // namespace cudasim::runtime
