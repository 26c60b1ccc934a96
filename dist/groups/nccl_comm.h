// A communicator of NCCL that can be ended at any time.
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

// Thread-safe. Without blocking (NCCL's config.blocking = 0), so that no thread is ever stuck in
// NCCL. Its own failures throw Error with NCCL's text.
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
  // Bytes that go to, or come from, a rank; all at once.
  struct Part {
    Transfer::Direction direction;
    void* data;
    int64_t bytes;
    int peer;
  };
  void Exchange(const std::vector<Part>& parts, Stream stream);

  Device device() const { return device_; }
  // What has gone wrong behind the back, if anything: "remote process exited ...".
  std::optional<std::string> AsyncError();
  // What is under way ends, with anything in its outputs; other calls throw from now on.
  void Abort();

 private:
  // Runs `call` unless aborted, and waits until NCCL is done with what belongs to it on the host.
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

// Whether NCCL can reduce it.
bool NcclReduces(DType dtype);

}  // namespace lockstep::dist
