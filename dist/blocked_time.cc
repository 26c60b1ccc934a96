#include "dist/blocked_time.h"

namespace lockstep::dist {
namespace {
thread_local Work::Clock::duration blocked{};
}  // namespace

Blocked::~Blocked() { blocked += Work::Clock::now() - since_; }

Work::Clock::duration Blocked::Time() { return blocked; }

}  // namespace lockstep::dist
