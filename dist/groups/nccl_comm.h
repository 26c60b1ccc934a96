// An NCCL communicator that can be aborted at any time.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "dist/groups/collective.h"
#include "dist/groups/nccl_api.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Thread-safe. Nonblocking (NCCL's config.blocking = 0), so that no thread is ever stuck in NCCL.
// Failures of NCCL throw Error with NCCL's text.
class NcclComm {
 public:
  // `id` is what rank 0's NewId returned. Collective.
  NcclComm(const ncclUniqueId& id, int rank, int size, Device device,
           std::chrono::milliseconds timeout);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  static ncclUniqueId NewId();

  void AllReduce(const Tensor& tensor, ReduceOp op, Stream stream);
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream stream);
  void AllGather(const Tensor& input, const Tensor& output, Stream stream);
  void Broadcast(const Tensor& tensor, int root, Stream stream);
  // Bytes that are sent to, or received from, a rank. Exchange moves all parts at once.
  struct Part {
    Transfer::Direction direction;
    void* data;
    int64_t bytes;
    int peer;
  };
  void Exchange(const std::vector<Part>& parts, Stream stream);

  Device device() const { return device_; }
  // NCCL's asynchronous error, if any: "remote process exited ...".
  std::optional<std::string> AsyncError();
  // Ends the operations in progress, whose outputs are then undefined; other calls throw from now
  // on.
  void Abort();

 private:
  // Runs `call` unless aborted, and waits until NCCL has finished its host-side work.
  template <class F>
  void Run(const char* what, const F& call);
  void WaitUntilDone(const char* what, ncclResult_t result,
                     std::chrono::steady_clock::time_point deadline);

  const Device device_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::atomic<bool> aborting_{false};
  ncclComm_t comm_ = nullptr;  // null once aborted
};

// Whether NCCL can reduce this dtype.
bool NcclReduces(DType dtype);

}  // namespace lockstep::dist
