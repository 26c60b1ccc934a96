// Work that a rank does by itself while the others wait for it.
#pragma once

#include <memory>
#include <string>

#include "dist/control/control_plane.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Put a Pause around work on this rank that may take long and calls no collective: writing a
// checkpoint, sampling, printing into a pipe that nobody reads. While it exists and this rank's
// process shows life, no rank's calls of any group time out (dist/groups/patience.h). A rank that
// dies or is stopped meanwhile is named as usual. Pauses nest.
class Pause {
 public:
  // Who waits: with kGroup, only calls of this group do not time out.
  enum class Scope { kRun, kGroup };

  // With a null group nobody waits. `what` follows "rank 0 has been ".
  Pause(const ProcessGroup* group, const std::string& what, Scope scope = Scope::kRun) {
    if (group == nullptr || group->control() == nullptr) return;
    control_ = group->control();
    if (scope == Scope::kGroup) topic_ = TopicOf(group->name());
    group->control()->BeginPause(what, topic_);
  }
  ~Pause() {
    if (const auto control = control_.lock()) control->EndPause(topic_);
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  // Weak: a pause that never ends, because a disk hangs, must not keep the run's connections open.
  std::weak_ptr<ControlPlane> control_;
  uint64_t topic_ = 0;
};

}  // namespace lockstep::dist
