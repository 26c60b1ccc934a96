// The internals of the stand-in for NCCL.
#ifndef CUDASIM_RUNTIME_NCCL_COMM_H_
#define CUDASIM_RUNTIME_NCCL_COMM_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl_mesh.h"
#include "state.h"

namespace cudasim::runtime {

// A collective, or one side of a transfer between two ranks.
struct Call {
  enum Kind { kAllReduce, kReduce, kBroadcast, kReduceScatter, kAllGather, kSend, kRecv };
  Kind kind = kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;  // Elements, as passed to the function.
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int root = 0;  // Or the peer's rank.
};

class Communicator {
 public:
  Communicator(int rank, int ranks, int device, bool blocking)
      : mesh_(rank, ranks), device_(device), blocking_(blocking) {}

  Mesh& mesh() { return mesh_; }
  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  ncclResult_t status() const { return static_cast<ncclResult_t>(status_.load()); }
  void SetStatus(ncclResult_t status) { status_ = status; }
  // A launch begins. False if the communicator has failed; one that has begun may begin again.
  bool BeginLaunch();
  // The end of what was in progress; an error that came meanwhile stays.
  void EndLaunch(ncclResult_t result, std::string error);
  // Why the latest launch failed. Its text lives as long as the communicator.
  const std::string& launch_error() const { return launch_error_; }
  bool finalized() const { return finalized_; }
  void Finalize() { finalized_ = true; }

  // Executes the calls that one group enqueued on one stream. Runs on the stream's thread.
  cudaError_t Run(const std::vector<Call>& calls);

  // Finds the ranks of the same color; creates the caller's new communicator, or null without a
  // color.
  ncclResult_t Split(int color, int key, std::function<ncclResult_t(int, int, ncclUniqueId)> join);

  // The newest operation; guarded by the state's lock.
  std::shared_ptr<Op> last;

 private:
  Mesh mesh_;
  int device_;
  bool blocking_;
  std::atomic<int> status_{ncclInProgress};
  std::atomic<bool> finalized_{false};
  std::string launch_error_;  // written before the status, and read after it
  std::mutex running_;
};

size_t SizeOf(ncclDataType_t type);
std::string Describe(const Call& call);

// into = into op from, element by element, rounded to the type after each operation.
void Combine(ncclDataType_t type, ncclRedOp_t op, const char* from, size_t count, char* into);
// Divides by the number of ranks.
void Average(ncclDataType_t type, int ranks, size_t count, char* values);

// A collective of all ranks of the mesh.
ncclResult_t RunCollective(Mesh* mesh, const Call& call);

}  // namespace cudasim::runtime

#endif  // CUDASIM_RUNTIME_NCCL_COMM_H_
