// The texts of reports about barriers and collectives.
#include <algorithm>

#include "block_runner.h"
#include "report.h"

namespace cudasim {
namespace {

// "0-15, 20": the numbers whose bit is set.
class Ranges {
 public:
  void Add(int number) {
    if (first_ >= 0 && number == last_ + 1) {
      last_ = number;
      return;
    }
    Flush();
    first_ = last_ = number;
  }
  std::string Get() {
    Flush();
    return text_.empty() ? "none" : text_;
  }

 private:
  void Flush() {
    if (first_ < 0) return;
    if (!text_.empty()) text_ += ", ";
    text_ += std::to_string(first_);
    if (last_ != first_) text_ += "-" + std::to_string(last_);
  }
  int first_ = -1, last_ = -1;
  std::string text_;
};

}  // namespace

std::string BlockRunner::Threads(unsigned Warp::*state) const {
  Ranges ranges;
  for (int i = 0; i < threads_; ++i) {
    if ((warps_[i / 32].*state >> (i % 32) & 1u) != 0) ranges.Add(i);
  }
  return ranges.Get();
}

std::string BlockRunner::Lanes(const Warp& warp, unsigned lanes) const {
  Ranges ranges;
  for (int lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1u) != 0) ranges.Add(lane);
  }
  return Text() << "lanes " << ranges.Get() << " of warp " << (&warp - warps_);
}

std::string BlockRunner::WhereLanesAre(const Warp& warp, unsigned lanes) const {
  std::string text;
  auto add = [&](unsigned which, const std::string& what) {
    if ((lanes & which) != 0) text += "\n  " + Lanes(warp, lanes & which) + " " + what;
  };
  add(warp.exited, "have exited");
  add(~warp.exists, "do not exist");
  if ((lanes & warp.at_barrier) != 0) {
    add(warp.at_barrier, Text() << "wait in __syncthreads at " << barrier_.where);
  }
  for (unsigned rest = lanes & warp.in_collective; rest != 0;) {
    const Call& call = warp.calls[__builtin_ctz(rest)];
    unsigned alike = 0;
    for (unsigned others = rest; others != 0; others &= others - 1) {
      const int lane = __builtin_ctz(others);
      const Call& other = warp.calls[lane];
      if (other.mask == call.mask && other.name == call.name &&
          other.where.line() == call.where.line() && other.where.column() == call.where.column()) {
        alike |= 1u << lane;
      }
    }
    add(alike, Text() << "wait in " << call.name << " at " << call.where << ", mask 0x" << std::hex
                      << call.mask);
    rest &= ~alike;
  }
  add(warp.ready, "run");
  return text;
}

void BlockRunner::ReportDeadlock() {
  for (int i = 0; i < warp_count_; ++i) {
    const Warp& warp = warps_[i];
    if (warp.in_collective == 0) continue;
    const Call& call = warp.calls[__builtin_ctz(warp.in_collective)];
    Report(Bug::kMissingLanes,
           Text() << call.name << " at " << call.where << " waits forever:"
                  << WhereLanesAre(warp, warp.in_collective) << "\nand the lanes that it waits for:"
                  << WhereLanesAre(warp, call.mask & warp.exists & ~warp.in_collective));
  }
  Report(Bug::kBarrierDivergence, Text() << "__syncthreads at " << barrier_.where
                                         << " waits forever: threads " << Threads(&Warp::at_barrier)
                                         << " are there");
}

void BlockRunner::ReportBarrierMismatch(Where here) {
  Report(Bug::kBarrierDivergence, Text() << "this thread is at the __syncthreads at " << here
                                         << ", threads " << Threads(&Warp::at_barrier)
                                         << " are at the one at " << barrier_.where);
}

void BlockRunner::ReportExitedAtBarrier() {
  Report(Bug::kBarrierDivergence,
         Text() << "threads " << Threads(&Warp::at_barrier) << " wait in __syncthreads at "
                << barrier_.where << ", and threads " << Threads(&Warp::exited)
                << " have exited without it (CUDASIM_EXITED=allow accepts that)");
}

void BlockRunner::ReportCollectiveMismatch(const Warp& warp, const Call& call) {
  Report(Bug::kMissingLanes, Text() << "lanes of one mask are in different collectives:"
                                    << WhereLanesAre(warp, call.mask & warp.exists));
}

void BlockRunner::ReportExitedLanes(const Warp& warp, const Call& call) {
  Report(Bug::kMissingLanes, Text() << call.name << " at " << call.where << ", mask 0x" << std::hex
                                    << call.mask << ": " << Lanes(warp, call.mask & warp.exited)
                                    << " have exited (CUDASIM_EXITED=allow accepts that)");
}

void ReportMissingSource(const LaneCalls& calls, int lane, int source) {
  Report(Bug::kMissingLanes, Text() << "the shuffle at " << calls.where << " gives lane " << lane
                                    << " the value of lane " << source
                                    << ", which does not participate");
}

}  // namespace cudasim
