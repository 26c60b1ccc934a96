// All ranks of a run, and their groups.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/control/control_plane.h"
#include "dist/control/rendezvous.h"
#include "dist/control/root_file.h"
#include "dist/groups/comparison.h"
#include "dist/groups/nccl_group.h"
#include "dist/mesh.h"
#include "dist/process_group.h"

namespace lockstep::dist {

struct WorldOptions {
  // How long ranks wait for each other at the start.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // All ranks name a rank whose process is stopped or cut off within this time. A silence that is
  // shorter by a third, at most by 4 s, is tolerated. 0: only the timeouts of calls count;
  // otherwise at least 100 ms.
  std::chrono::milliseconds heartbeat = std::chrono::seconds(20);
  // Asked several times a second while the ranks meet: whether to throw instead.
  std::function<bool()> gives_up = {};
};

// This process's part in the run: a thread, a connection to another rank, or some more if others
// connect to it. Keep it as long as its groups.
//
//   dist::World world(dist::ReadRendezvous());
//   const dist::Mesh mesh({.dp = 2, .tp = 4}, world.rank(), world.size());
//   const auto tp = world.Group(mesh, {"tp"});
class World {
 public:
  // Returns when all ranks have joined. Throws ConnectionError, on every rank that can be reached,
  // if ranks are missing after the timeout (it lists them), if two processes claim the same rank,
  // or if ranks differ in world size or build. Does not join what an earlier run of the same ranks
  // left behind. Throws ArgumentError if a secret is needed and missing.
  explicit World(const Rendezvous& rendezvous, const WorldOptions& options = {});
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rendezvous_.rank; }
  int size() const { return rendezvous_.world_size; }
  int local_rank() const { return rendezvous_.local_rank; }
  const Rendezvous& rendezvous() const { return rendezvous_; }
  // Identifies this meeting of the ranks: the same on all of them, and never reused.
  const std::string& meeting() const { return control_->meeting(); }
  // The group of all ranks, named options.name, which must differ from the names of all groups that
  // exist. Collective: all ranks make their groups in the same order, one at a time, while no
  // operation of another group on GPUs is in progress. Throws ArgumentError, on all ranks, if they
  // make different groups. Costs no thread and no connection beyond those that move its data.
  std::shared_ptr<ProcessGroup> Group(const GroupOptions& options = {});
  // This rank's group of the mesh along these axes, of several that together are the world: with
  // the name "world.tp[dp=1]", where "world" is options.name. Collective over the world.
  std::shared_ptr<ProcessGroup> Group(const Mesh& mesh, const std::vector<std::string>& axes,
                                      GroupOptions options = {});
  // Shared with the world's groups.
  const std::shared_ptr<ControlPlane>& control() const { return control_; }

 private:
  Socket Serve(ControlPlane::Options* options);
  std::function<RootAddress()> Search() const;
  // `plan`: what all ranks say of the group that they make.
  std::shared_ptr<ProcessGroup> MakeGroup(std::vector<int> members, const GroupOptions& options,
                                          const std::string& plan);
  void ComparePlans(const std::string& plan, const GroupOptions& options);

  const Rendezvous rendezvous_;
  std::unique_ptr<RootFile> root_file_;
  std::shared_ptr<ControlPlane> control_;
  std::unique_ptr<Comparison> plans_;
  std::atomic<int> groups_{0};        // whose plans were compared
  std::unique_ptr<NcclGroups> gpus_;  // once there is a group on this rank's
};

}  // namespace lockstep::dist
