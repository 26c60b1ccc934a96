#include "dist/groups/nccl_group.h"

#include <cstring>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "core/cuda/handles.h"
#include "dist/control/flight_log.h"
#include "dist/control/flight_recorder.h"
#include "dist/groups/call_check.h"
#include "dist/groups/nccl_comm.h"
#include "dist/groups/nccl_watchdog.h"
#include "dist/groups/nccl_work.h"

namespace lockstep::dist {
namespace {

using Clock = Work::Clock;

// Sends rank 0's id to all ranks over the host.
ncclUniqueId ShareId(ProcessGroup& host) {
  ncclUniqueId id = {};
  if (host.rank() == 0) id = NcclComm::NewId();
  const Tensor bytes = Tensor::Zeros({static_cast<int64_t>(sizeof(id))}, DType::kU8);
  std::memcpy(bytes.raw_data(), &id, sizeof(id));
  host.Broadcast(bytes, 0)->Synchronize();
  std::memcpy(&id, bytes.raw_data(), sizeof(id));
  return id;
}

bool IsCapturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::SetDevice(stream.device);
  LS_CUDA(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle.get()), &status));
  return status != cudaStreamCaptureStatusNone;
}

class NcclGroup : public ProcessGroup {
 public:
  NcclGroup(std::shared_ptr<ProcessGroup> host, Device device, const GroupOptions& options)
      : ProcessGroup(host->rank(), host->size(), options, host->control()),
        exceptions_(std::uncaught_exceptions()),
        device_(device),
        host_(std::move(host)),
        state_(std::make_shared<FailureState>(options.name, rank())),
        stream_(device),
        comm_(ShareId(*host_), rank(), size(), device, options.timeout),
        nothing_(Tensor::Zeros({1}, DType::kU8, device)),
        watchdog_(control(), options, &comm_, state_) {
    nothing_.storage().RecordUse(stream_);
    // The zeros were written on another stream.
    Synchronize(CurrentStream(device));
    DropAnchor();
  }

  ~NcclGroup() override {
    if (std::uncaught_exceptions() > exceptions_) {
      Abort("its group was destroyed by an exception");
    } else {
      try {
        // No rank's communicator may end while others still need it.
        const Collective leave{CollectiveKind::kLeave, ReduceOp::kSum, DType::kU8, 0, 0,
                               NextSequence()};
        watchdog_.Called(leave);
        watchdog_.Leave();
        if (last_ != nullptr) last_->Synchronize();
        Compare(leave);
      } catch (const Error&) {
        // The others learn of it; it does not matter to a rank that leaves.
      }
    }
    watchdog_.Stop();
  }

  Device device() const override { return device_; }

  void CheckInStep() override {
    const Collective c{CollectiveKind::kBarrier, ReduceOp::kSum, DType::kU8, 0, 0, NextSequence()};
    Note(c, "");
    Compare(c);
    if (last_ != nullptr) last_->Synchronize();
    state_->ThrowIfFailed(c);
    if (options().recorder) options().recorder->End(name(), c);
    DropAnchor();
  }

  // Uses the host group; the others' watchdogs see the call in the log.
  WorkPtr Leave() override {
    Note({CollectiveKind::kLeave, ReduceOp::kSum, DType::kU8, 0, 0, NextSequence()}, "");
    return host_->Leave();
  }

  void Abort(const std::string& reason) override {
    Failure failure = FailureOf(CollectiveError::Cause::kAborted, rank(),
                                StrCat("rank ", rank(), " gave up: ", reason));
    failure.operation = watchdog_.LastCall();
    watchdog_.Fail(failure);
  }

  std::shared_ptr<ProcessGroup> Duplicate(const std::string& name) override {
    GroupOptions options = this->options();
    options.name = name;
    return MakeNcclGroup(host_->Duplicate(name + "/host"), device_, options);
  }

 private:
  WorkPtr Submit(Call call) override {
    const Collective& c = call.collective;
    if (c.kind == CollectiveKind::kAllReduce || c.kind == CollectiveKind::kReduceScatter) {
      LS_CHECK(NcclReduces(c.dtype), Name(c.kind), " in group '", name(), "': NCCL cannot reduce ",
               c.dtype, "; convert it to i32");
    }
    Note(c, call.purpose);
    if (options().check_every_call) CheckCall(call);
    if (call.output.defined()) call.output.storage().BumpVersion();
    const Stream caller = CurrentStream(device_);
    const bool captured = IsCapturing(caller);
    Event ready(device_);
    ready.Record(caller);
    ready.Wait(stream_);
    auto work = std::make_shared<NcclWork>(c, call.purpose, stream_, anchor_, captured, state_);
    Guard(c, call.purpose, [&] { Enqueue(call); });
    work->Submitted();
    if (!captured) {
      KeepAlive(call);
      last_ = work;
      watchdog_.Watch(work);
    }
    return work;
  }

  // Records the call; throws if the group has failed.
  void Note(const Collective& c, const std::string& purpose) {
    if (options().recorder) options().recorder->Submit(name(), c, purpose);
    state_->ThrowIfFailed(c, purpose);
    // Not all ranks take part in exchanges.
    if (c.kind != CollectiveKind::kExchange) {
      hash_ = Extend(hash_, c);
      watchdog_.Called(c);
    }
  }

  void Enqueue(const Call& call) {
    const Collective& c = call.collective;
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        if (c.count > 0) comm_.AllReduce(call.output, c.op, stream_);
        return;
      case CollectiveKind::kReduceScatter:
        if (c.count > 0) comm_.ReduceScatter(call.input, call.output, c.op, stream_);
        return;
      case CollectiveKind::kAllGather:
        if (c.count > 0) comm_.AllGather(call.input, call.output, stream_);
        return;
      case CollectiveKind::kBroadcast:
        if (c.count > 0) comm_.Broadcast(call.output, c.root, stream_);
        return;
      case CollectiveKind::kAllToAll:
        return comm_.Exchange(PartsOf(call), stream_);
      case CollectiveKind::kExchange:
        return comm_.Exchange(TransfersOf(call), stream_);
      case CollectiveKind::kBarrier:
      case CollectiveKind::kLeave:
        return comm_.AllReduce(nothing_, ReduceOp::kMax, stream_);
    }
  }

  std::vector<NcclComm::Part> PartsOf(const Call& call) const {
    std::vector<NcclComm::Part> parts;
    const int64_t element = SizeOf(call.collective.dtype);
    auto* in = static_cast<std::byte*>(call.input.raw_data());
    auto* out = static_cast<std::byte*>(call.output.raw_data());
    for (int p = 0; p < size(); ++p) {
      const int64_t give = call.input_counts[static_cast<size_t>(p)] * element;
      const int64_t take = call.output_counts[static_cast<size_t>(p)] * element;
      if (give > 0) parts.push_back({Transfer::Direction::kSend, in, give, p});
      if (take > 0) parts.push_back({Transfer::Direction::kReceive, out, take, p});
      in += give;
      out += take;
    }
    return parts;
  }

  static std::vector<NcclComm::Part> TransfersOf(const Call& call) {
    std::vector<NcclComm::Part> parts;
    for (const Transfer& t : call.transfers) {
      if (t.direction == Transfer::Direction::kReceive) t.tensor.storage().BumpVersion();
      if (t.tensor.numel() == 0) continue;
      parts.push_back({t.direction, t.tensor.raw_data(), t.tensor.bytes(), t.peer});
    }
    return parts;
  }

  // Makes the allocator reuse the memory only after this stream's work.
  void KeepAlive(const Call& call) const {
    if (call.input.defined()) call.input.storage().RecordUse(stream_);
    if (call.output.defined()) call.output.storage().RecordUse(stream_);
    for (const Transfer& t : call.transfers) t.tensor.storage().RecordUse(stream_);
  }

  // For dist.check=full.
  void CheckCall(const Call& call) {
    const Collective& c = call.collective;
    Guard(c, call.purpose, [&] {
      if (c.kind == CollectiveKind::kExchange) return CheckTransfers(*host_, c, call.transfers);
      CheckCollective(*host_, c);
      if (c.kind == CollectiveKind::kAllToAll) {
        CheckParts(*host_, c, call.input_counts, call.output_counts);
      }
    });
  }

  // Compares all ranks' calls so far.
  void Compare(const Collective& c) {
    Guard(c, "", [&] { CheckHistory(*host_, c, hash_, watchdog_.Log()); });
  }

  // An error in `f` becomes the group's failure, and is thrown as such.
  template <class F>
  void Guard(const Collective& c, const std::string& purpose, const F& f) {
    Failure failure;
    failure.rank = rank();
    failure.operation = c;
    failure.purpose = purpose;
    try {
      return f();
    } catch (const MismatchError& e) {
      failure.cause = CollectiveError::Cause::kMismatch;
      failure.culprits = e.culprits;
      failure.reason = e.what();
    } catch (const CollectiveError& e) {
      failure.cause = e.cause();
      failure.culprits = e.culprits();
      failure.reason = e.what();
    } catch (const Error& e) {
      failure.culprits = {rank()};
      failure.reason = StrCat("rank ", rank(), " failed: ", e.what());
    }
    watchdog_.Fail(failure);
    state_->ThrowIfFailed(c, purpose);
  }

  // Relates the stream to the host's clock. Call it only while the stream is idle.
  void DropAnchor() {
    auto event = std::make_shared<TimedEvent>(stream_);
    Synchronize(stream_.get());
    anchor_ = {std::move(event), Clock::now()};
  }

  const int exceptions_;
  const Device device_;
  const std::shared_ptr<ProcessGroup> host_;
  const std::shared_ptr<FailureState> state_;
  const cuda::OwnedStream stream_;
  NcclComm comm_;
  const Tensor nothing_;
  Anchor anchor_;
  uint64_t hash_ = 0;
  std::shared_ptr<NcclWork> last_;
  NcclWatchdog watchdog_;
};

}  // namespace

std::shared_ptr<ProcessGroup> MakeNcclGroup(std::shared_ptr<ProcessGroup> host, Device device,
                                            const GroupOptions& options) {
  LS_CHECK(device.is_cuda(), "group '", options.name, "': NCCL works on GPUs, not on ", device);
  return std::make_shared<NcclGroup>(std::move(host), device, options);
}

}  // namespace lockstep::dist
