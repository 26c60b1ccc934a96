// What the threads of a grid know of each other's accesses to memory: an access comes before
// another only if the thread of the second knows of the first.
//
// A thread knows another's accesses up to a time, and learns of more where they meet: bar.sync
// joins what all warps know, bar.warp.sync what the lanes know; shuffles and votes order no memory.
// Atomic and volatile accesses pass on only what a fence has covered, at the fence's scope. No
// order that exists is overlooked, but across atomics some that do not exist are taken for granted,
// and races missed: of others' atomics a thread remembers a single time, of the last that it has
// seen, rather than one for each thread; it acquires by a relaxed access at once, without the fence
// that must follow; and what a thread's fence has covered, others who then meet it at a barrier may
// publish.
#ifndef CUDASIM_PTX_DETECTORS_CLOCKS_H_
#define CUDASIM_PTX_DETECTORS_CLOCKS_H_

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tools/cudasim/ptx/warp.h"

namespace cudasim {
namespace ptx {

// Counts what orders accesses: barriers, fences and releases of the whole grid. 0 is before all.
using Time = uint32_t;

// The times up to which a thread knows others' accesses.
struct Knowledge {
  std::array<Time, kLanes> lanes{};  // of its warp
  std::array<Time, kLanes> warps{};  // of its block: of all their lanes
  Time own = 0;                      // of the thread itself, if later than lanes[its own]
  void Join(const Knowledge& other);
  bool operator==(const Knowledge&) const = default;
};

struct ThreadClock {
  // What the thread knows, and what of it is covered by a fence for the block, or for all.
  enum Part { kKnown, kForBlock, kForAll, kParts };
  std::array<Knowledge, kParts> parts;
  bool fenced = false;  // whether a fence covers anything
  Time seen = 0;        // releases by atomics, up to which it knows what they published
  void Join(const ThreadClock& other);
  void Fence(Time now, bool for_all);
};

// A thread has published what it knows by an atomic or volatile access after a fence.
struct Publication {
  Time time;
  uint32_t warp;
  Knowledge for_block, for_all;
};

// Of a grid.
struct GridClock {
  Time now = 1;
  std::unordered_map<uint32_t, std::vector<Publication>> published;  // by block, in order
  std::unordered_map<uint64_t, Time> releases;                       // the last, by address
};

// Of the threads of a block.
class Clocks {
 public:
  explicit Clocks(GridClock* grid) : grid_(grid) {}
  void Begin(uint32_t block, size_t warps);

  void MeetLanes(const Warp& warp, uint32_t members);
  void Fence(const Warp& warp, bool for_all);
  // A warp has come to a barrier, where it waits or not; a warp leaves it when it opens; it has
  // opened for all.
  void Arrive(const Warp& warp, int barrier, bool waits);
  void Leave(const Warp& warp, int barrier);
  void Close(int barrier) { meetings_[barrier] = {}; }
  // An atomic or volatile access to an address. `fence`: it has release semantics of its own.
  void Acquire(const Warp& warp, int lane, uint64_t address);
  void Release(const Warp& warp, int lane, uint64_t address, bool fence, bool for_all);

  Time now() const { return grid_->now; }
  // Whether the thread knows of another's access at a time.
  bool Knows(const Warp& warp, int lane, Time time, uint32_t block, uint32_t thread) const;

 private:
  // Mostly all lanes of a warp know the same.
  struct WarpClock {
    ThreadClock common;
    std::vector<ThreadClock> lanes;  // if they do not
  };
  const ThreadClock& Of(const Warp& warp, int lane) const {
    const WarpClock& clock = warps_[warp.number];
    return clock.lanes.empty() ? clock.common : clock.lanes[lane];
  }
  ThreadClock& OwnOf(const Warp& warp, int lane);
  // What the lanes know together, and of each other; and makes it what each knows.
  ThreadClock Joined(const Warp& warp, uint32_t members) const;
  void Teach(const Warp& warp, uint32_t members, const ThreadClock& all);

  GridClock* grid_;
  uint32_t block_ = 0;
  std::vector<WarpClock> warps_;
  std::array<ThreadClock, 16> meetings_;  // at barriers; of lanes they know nothing
};

}  // namespace ptx
}  // namespace cudasim

#endif  // CUDASIM_PTX_DETECTORS_CLOCKS_H_
