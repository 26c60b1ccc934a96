// Work that a rank does by itself while the others wait for it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "dist/control/failure_board.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Around what may take long on this rank and calls no collective: writing a checkpoint, sampling,
// printing into a pipe that nobody reads. For as long as the scope lives, and this rank's process
// shows life, no timeout runs, in any rank's calls of the group and its duplicates; who waits for
// half of the timeout tells so: "rank 0 has been writing a checkpoint for 31 s". A rank that dies
// or is stopped meanwhile is named as ever. A scope within another one is part of it.
class Pause {
 public:
  // A null group: there is nobody to wait. `what` follows "rank 0 has been ".
  Pause(const ProcessGroup* group, std::string what)
      : status_(group != nullptr ? group->status() : nullptr) {
    if (status_) status_->BeginPause(std::move(what));
  }
  ~Pause() {
    if (status_) status_->EndPause();
  }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  const std::shared_ptr<RankStatus> status_;
};

// On one of the ranks that wait, and not again within half of the timeout: GroupOptions::say.
inline void TellOfPause(const GroupOptions& options, RankStatus& status, int rank,
                        const DeclaredPause& pause) {
  const bool tells = options.say && rank == (pause.rank == 0 ? 1 : 0);
  if (tells && status.TellsNow(options.timeout / 2)) {
    options.say(StrCat(Describe(pause), "; the other ranks wait for it"));
  }
}

}  // namespace lockstep::dist
