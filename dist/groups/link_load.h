// Whether ranks wait for the link between them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace lockstep::dist {

// Told of each exchange of messages of one group. One thread uses it.
class LinkLoad {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // An operation begins, of which there may be several exchanges.
  void BeginOperation(Time now);
  // An exchange, in which so many bytes left and others came, is over. Small ones do not count.
  void Exchanged(int64_t bytes, Time begin, Time end);

  // Most of the last eight operations began soon after the one before, within half the time that it
  // took, and none of the last eight exchanges was faster than 50 MB/s.
  bool IsBehind() const;

 private:
  std::array<bool, 8> soon_ = {};
  std::array<double, 8> rates_ = {};  // bytes per second
  int64_t operations_ = 0, exchanges_ = 0;
  Time now_;                 // when the operation under way began
  bool is_counted_ = false;  // the operation under way
  Time begin_, end_;         // of the exchanges of the last one that counts
};

}  // namespace lockstep::dist
