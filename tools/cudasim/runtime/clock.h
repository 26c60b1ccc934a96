// Vector clocks over streams, which tell what happened before what.
#ifndef CUDASIM_RUNTIME_CLOCK_H_
#define CUDASIM_RUNTIME_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <map>

namespace cudasim::runtime {

// Per stream (by its number, never reused), how many of its operations have happened.
class Clock {
 public:
  uint64_t Of(uint64_t stream) const {
    const auto found = ticks_.find(stream);
    return found == ticks_.end() ? 0 : found->second;
  }
  void Set(uint64_t stream, uint64_t tick) { ticks_[stream] = tick; }
  void Join(const Clock& other) {
    for (const auto& [stream, tick] : other.ticks_) {
      uint64_t& mine = ticks_[stream];
      mine = std::max(mine, tick);
    }
  }

 private:
  std::map<uint64_t, uint64_t> ticks_;
};

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_CLOCK_H_
