// An NCCL communicator that can be aborted at any time.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/stream.h"
#include "core/tensor.h"
#include "dist/collective.h"
#include "dist/control/awake_clock.h"
#include "dist/groups/nccl_api.h"
#include "dist/groups/nccl_work.h"
#include "dist/process_group.h"

namespace lockstep::dist {

// Something did not end in time.
class NcclTimeout : public Error {
 public:
  using Error::Error;
};

// Another rank's process or connection is gone.
class NcclRemoteError : public Error {
 public:
  using Error::Error;
};

// Thread-safe. Nonblocking (NCCL's config.blocking = 0), so that no thread is ever stuck in NCCL.
// Failures of NCCL throw Error with NCCL's text; also those of other calls, which it may report in
// any.
class NcclComm {
 public:
  // `id` is what rank 0's NewId returned. Collective; gives up once `state` (may be null) has a
  // failure. most_blocks: as in GroupOptions.
  NcclComm(const ncclUniqueId& id, int rank, int size, Device device,
           std::chrono::milliseconds timeout, std::shared_ptr<const FailureState> state,
           int most_blocks = 0);
  ~NcclComm();
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  static ncclUniqueId NewId();

  // The communicator of the ranks that give the same color (at least 0); they are numbered by key.
  // Collective; no operation may be in progress. Null if the library cannot split. The timeout is
  // that of the split, too.
  std::unique_ptr<NcclComm> Split(int color, int key, std::chrono::milliseconds timeout,
                                  std::shared_ptr<const FailureState> state, int most_blocks);

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

  // Memory that operations use, which lives until this is destroyed and NCCL has aborted.
  void Keep(const Tensor& memory) { kept_.push_back(memory); }

  Device device() const { return device_; }
  // NCCL's asynchronous error, if any: "remote process exited ...". None while another thread's
  // call is in progress.
  std::optional<std::string> AsyncError();
  // Ends the operations in progress, whose outputs are then undefined; other calls throw from now
  // on. Returns when NCCL has done so, or after 5 s: it can hang (nccl #829), and is then left
  // alone, with a warning that says why it was to abort.
  void Abort();
  // Several communicators of a device, at least one, are aborted together: NCCL may wait for one
  // while it aborts another.
  static void Abort(const std::vector<std::shared_ptr<NcclComm>>& comms);

 private:
  NcclComm(Device device, std::chrono::milliseconds timeout,
           std::shared_ptr<const FailureState> state);
  // What must live as long as NCCL uses the communicator.
  std::shared_ptr<const void> InUse() const;
  // Takes it away from this object.
  ncclComm_t Take();
  // Runs `call` unless aborted, and waits until NCCL has finished its host-side work.
  template <class F>
  void Run(const char* what, const Stream& stream, const F& call,
           std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  void WaitUntilDone(const char* what, ncclResult_t result, AwakeClock::time_point deadline);

  const Device device_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<const FailureState> state_;
  std::vector<Tensor> kept_;
  std::mutex mutex_;
  std::atomic<bool> aborting_{false};
  ncclComm_t comm_ = nullptr;  // null once aborted
  Stream stream_;              // of the latest operation: the end of a stream waits for its work
  // Where NCCL writes the communicators of splits that have not ended well, perhaps later.
  std::list<ncclComm_t> parts_;
};

// Whether NCCL can reduce this dtype.
bool NcclReduces(DType dtype);

}  // namespace lockstep::dist
