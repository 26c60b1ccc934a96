#include "dist/blocked_time.h"

namespace lockstep::dist {
namespace {
thread_local Work::Clock::duration blocked{};
thread_local Blocked::Times blocked_by_group;
}  // namespace

Blocked::~Blocked() {
  const Work::Clock::duration time = Work::Clock::now() - since_;
  blocked += time;
  auto known = blocked_by_group.find(by_);
  if (known == blocked_by_group.end())
    known = blocked_by_group.emplace(by_, Work::Clock::duration::zero()).first;
  known->second += time;
}

Work::Clock::duration Blocked::Time() { return blocked; }

const Blocked::Times& Blocked::TimesByGroup() { return blocked_by_group; }

}  // namespace lockstep::dist
