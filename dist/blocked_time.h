// How long a thread has waited for other ranks.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "dist/work.h"

namespace lockstep::dist {

// Within its scope this thread counts as blocked by other ranks. Scopes do not nest.
class Blocked {
 public:
  // `by`: the name of the group that is waited for, which outlives the scope.
  explicit Blocked(std::string_view by) : by_(by), since_(Work::Clock::now()) {}
  ~Blocked();
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

  // In all, since this thread began: in Work::Wait and Synchronize of groups on the host, and in
  // Lane::Wait on the CPU. What a device waits for is not in it.
  static Work::Clock::duration Time();
  // The same by the name of the group. Lanes, which sum gradients, count as kGradientLanes.
  using Times = std::map<std::string, Work::Clock::duration, std::less<>>;
  static const Times& TimesByGroup();

  static constexpr std::string_view kGradientLanes = "gradients";

 private:
  const std::string_view by_;
  const Work::Clock::time_point since_;
};

}  // namespace lockstep::dist
