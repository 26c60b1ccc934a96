// All ranks of a run, having found each other.
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
  // Returns when all ranks are there. StoreError, the same on every rank: after `timeout`, listing
  // the missing ones; where two processes have the same rank; where ranks disagree on the world's
  // size, or are of different builds. A store that earlier processes of the same ranks have left
  // behind, which is about to end, is not joined.
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
  // The same on all ranks, and another each time that ranks meet.
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
