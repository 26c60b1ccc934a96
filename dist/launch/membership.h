// A rank's side of an elastic run: which world it is in, and when to leave it for the next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "core/io/json.h"
#include "dist/control/file_descriptor.h"
#include "dist/control/rendezvous.h"
#include "dist/launch/members.h"

namespace lockstep::dist {

class ReservedPort;

// The process outlives its worlds: when a rank ends, or another one comes, all leave the world and
// meet in the next, with other ranks.
//
//   const auto membership = Membership::Find();
//   for (int64_t step = -1;;) {
//     const auto place = membership->Join({.step = step});
//     World world(place->rendezvous);
//     ... until a CollectiveError, or membership->is_summoned() on any rank; then `step` is known
//   }
//
// tools/launch --elastic decides (members.h). It ends with its ranks, and they with it.
class Membership {
 public:
  struct Place {
    Rendezvous rendezvous;
    int64_t epoch = 1;  // of the world
    std::string news;   // why there is a new world
  };

  // Null unless the launcher is elastic. Call it once a process.
  static std::unique_ptr<Membership> Find();
  explicit Membership(FileDescriptor launcher);
  ~Membership();

  // Says what this process has (the epoch and port are known here), waits for the next world, and
  // returns this process's place in it; none if the run is over. Throws Error if it cannot go on,
  // with the launcher's reason.
  std::optional<Place> Join(MemberReady ready);
  // Whether others wait for a new world: finish the step, and come. Does not wait.
  bool is_summoned() { return Hear(), summoned_; }
  // Whether a process of this world has ended (WorldOptions::gives_up). Does not wait.
  bool is_broken() { return Hear(), broken_; }

 private:
  void WatchLauncher();
  void Hear();
  void Note(const Json& message);
  std::optional<std::string> NextLine(int timeout_ms);

  const FileDescriptor launcher_;
  std::string begun_;  // of a line
  std::unique_ptr<ReservedPort> port_;
  int64_t epoch_ = 0;
  bool summoned_ = false, broken_ = false, over_ = false;
  std::optional<std::string> refusal_;
  std::optional<MemberPlace> place_;
  std::jthread watch_;
};

}  // namespace lockstep::dist
