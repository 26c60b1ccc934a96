// All ranks of a run, having found each other.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "dist/rendezvous.h"
#include "dist/store.h"

namespace lockstep::dist {

class TcpStoreServer;

// Keep it as long as its groups: on rank 0 it serves the store.
class World {
 public:
  // Returns when all ranks are there. StoreError, the same on every rank: after `timeout`, listing
  // the missing ones; where two processes have the same rank; where ranks disagree on the world's
  // size.
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

 private:
  void Join(std::chrono::milliseconds timeout);
  void WaitFor(int rank, std::chrono::steady_clock::time_point deadline, std::vector<int>* missing);
  [[noreturn]] void Refuse(const std::string& reason);

  const Rendezvous rendezvous_;
  std::unique_ptr<TcpStoreServer> server_;
  std::unique_ptr<Store> store_;
};

}  // namespace lockstep::dist
