// All ranks of a run.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "dist/control/control_plane.h"
#include "dist/control/rendezvous.h"
#include "dist/control/root_file.h"

namespace lockstep::dist {

struct WorldOptions {
  // How long ranks wait for each other at the start.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // All ranks name a rank whose process is stopped or cut off within this time. A silence that is
  // shorter by a third, at most by 4 s, is tolerated. 0: only the timeouts of calls count;
  // otherwise at least 100 ms.
  std::chrono::milliseconds heartbeat = std::chrono::seconds(20);
};

// This process's part in the run: a thread, a connection to another rank, or some more if others
// connect to it. Keep it as long as its groups.
class World {
 public:
  // Returns when all ranks have joined. Throws ConnectionError, on every rank that can be reached,
  // if ranks are missing after the timeout (it lists them), if two processes claim the same rank,
  // or if ranks differ in world size or build. Does not join what an earlier run of the same ranks
  // left behind. Throws ArgumentError if a secret is needed and missing.
  explicit World(const Rendezvous& rendezvous, const WorldOptions& options = {});
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rendezvous_.rank; }
  int size() const { return rendezvous_.world_size; }
  int local_rank() const { return rendezvous_.local_rank; }
  const Rendezvous& rendezvous() const { return rendezvous_; }
  // Identifies this meeting of the ranks: the same on all of them, and never reused.
  const std::string& meeting() const { return control_->meeting(); }
  // Shared with the world's groups.
  const std::shared_ptr<ControlPlane>& control() const { return control_; }

 private:
  void Serve(ControlPlane::Options* options);
  std::function<RootAddress()> Search() const;

  const Rendezvous rendezvous_;
  std::unique_ptr<RootFile> root_file_;
  std::shared_ptr<ControlPlane> control_;
};

}  // namespace lockstep::dist
