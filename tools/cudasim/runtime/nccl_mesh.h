// A socket between every two ranks of a communicator.
#ifndef CUDASIM_RUNTIME_NCCL_MESH_H_
#define CUDASIM_RUNTIME_NCCL_MESH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nccl.h"

namespace cudasim::runtime {

// Bytes to or from a rank. Both ends must have the same `what` and the same size.
struct Transfer {
  int peer = 0;
  char* data = nullptr;
  size_t size = 0;
  bool send = false;
  std::string what;
};

class Mesh {
 public:
  Mesh(int rank, int ranks) : rank_(rank), sockets_(ranks, -1) {}
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(sockets_.size()); }

  // Meets the other ranks. `device` is this rank's, to refuse one device for two ranks.
  ncclResult_t Connect(const ncclUniqueId& id, int device);

  // Does all transfers concurrently, but those with the same peer and direction in order. Returns
  // ncclRemoteError if a peer is lost, and ncclInvalidUsage if the two ends disagree; error() says
  // more.
  ncclResult_t Exchange(std::vector<Transfer> transfers);

  // Ends all transfers; may be called from any thread.
  void Abort() { aborted_ = true; }
  bool aborted() const { return aborted_; }
  const std::string& error() const { return error_; }

 private:
  struct Progress;

  ncclResult_t Fail(ncclResult_t result, std::string error);
  ncclResult_t Accept(int listener, uint64_t nonce);
  // Moves what can be moved now; sets `moved` if anything was.
  ncclResult_t Advance(Progress* progress, bool* moved);

  int rank_;
  std::vector<int> sockets_;
  std::atomic<bool> aborted_{false};
  std::string error_;
};

// Starts waiting for the ranks of a new communicator.
ncclResult_t MakeUniqueId(ncclUniqueId* id);

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_NCCL_MESH_H_
