// All ranks of a run, connected through a store.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "dist/control/rendezvous.h"
#include "dist/control/store.h"
#include "dist/control/tcp_store.h"

namespace lockstep::dist {

// Keep it as long as its groups: on rank 0 it serves the store.
class World {
 public:
  // Returns when all ranks have joined. Throws the same StoreError on every rank if ranks are
  // missing after `timeout` (it lists them), if two processes claim the same rank, or if ranks
  // differ in world size or build. Does not join a store that an earlier run of the same ranks left
  // behind.
  explicit World(const Rendezvous& rendezvous,
                 std::chrono::milliseconds timeout = std::chrono::minutes(5));
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rendezvous_.rank; }
  int size() const { return rendezvous_.world_size; }
  int local_rank() const { return rendezvous_.local_rank; }
  const Rendezvous& rendezvous() const { return rendezvous_; }
  Store& store() { return *store_; }
  // Identifies this meeting of the ranks: the same on all of them, and never reused.
  const std::string& meeting() const { return meeting_; }

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  void Open(Deadline deadline);
  TcpStoreAddress Address(int choice) const;
  void Serve();
  void Connect(Deadline deadline);
  void Join(Deadline deadline);
  void Meet(Deadline deadline);
  void WaitFor(int rank, Deadline deadline, std::vector<int>* missing);
  [[noreturn]] void Refuse(const std::string& reason);

  const Rendezvous rendezvous_;
  std::string meeting_;
  std::unique_ptr<TcpStoreServer> server_;
  std::unique_ptr<Store> store_;
};

}  // namespace lockstep::dist
