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
  // With a null group nobody waits. `what` follows "rank 0 has been ".
  Pause(const ProcessGroup* group, const std::string& what)
      : control_(group != nullptr ? group->control() : nullptr) {
    if (control_) control_->BeginPause(what);
  }
  ~Pause() {
    if (control_) control_->EndPause();
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  const std::shared_ptr<ControlPlane> control_;
};

}  // namespace lockstep::dist
