#include "dist/groups/nccl_group.h"

#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "core/cuda/device.h"
#include "core/cuda/error.h"
#include "dist/content_hash.h"
#include "dist/flight/flight_log.h"
#include "dist/flight/flight_recorder.h"
#include "dist/groups/call_check.h"
#include "dist/groups/nccl_comm.h"
#include "dist/groups/nccl_watchdog.h"
#include "dist/groups/nccl_work.h"

namespace lockstep::dist {
namespace {

using Clock = Work::Clock;

bool IsCapturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::SetDevice(stream.device);
  LS_CUDA(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.handle.get()), &status));
  return status != cudaStreamCaptureStatusNone;
}

class NcclGroup : public ProcessGroup {
 public:
  // `parent`: to split; null for a new communicator. The watchdog is the process's.
  NcclGroup(std::vector<int> members, std::shared_ptr<ControlPlane> plane,
            const GroupOptions& options, NcclComm* parent, std::shared_ptr<NcclWatchdog> watchdog)
      : ProcessGroup(std::move(members), options, std::move(plane)),
        exceptions_(std::uncaught_exceptions()),
        device_(options.device),
        state_(std::make_shared<FailureState>(options.name, world_rank())),
        stream_(GetStreamBackend(device_.type).CreateStream(device_)),
        watchdog_(std::move(watchdog)),
        watch_(control(), this->members(), options, state_, watchdog_),
        comparison_(control(), options.name, this->members()),
        comm_(Connect(parent)),
        nothing_(Tensor::Zeros({1}, DType::kU8, device_)) {
    nothing_.storage().RecordUse(stream_);
    // The zeros were written on another stream.
    Synchronize(CurrentStream(device_));
    DropAnchor();
    watch_.Start(comm_);
  }

  const std::shared_ptr<NcclComm>& comm() const { return comm_; }

  ~NcclGroup() override {
    if (std::uncaught_exceptions() > exceptions_) {
      Abort("its group was destroyed by an exception");
    } else {
      try {
        // No rank's communicator may end while others still need it.
        const Collective leave{.kind = CollectiveKind::kLeave, .sequence = NextSequence()};
        watch_.Called(leave);
        watch_.Leave();
        if (last_ != nullptr) last_->Synchronize();
        Compare(leave);
      } catch (const Error&) {
        // The others learn of it; it does not matter to a rank that leaves.
      }
    }
    watch_.Stop();
  }

  Device device() const override { return device_; }

  void CheckInStep() override {
    const Collective c{.kind = CollectiveKind::kBarrier, .sequence = NextSequence()};
    Note(c, "");
    Compare(c);
    if (last_ != nullptr) last_->Synchronize();
    state_->ThrowIfFailed(c);
    if (options().recorder) options().recorder->End(name(), c);
    DropAnchor();
  }

  std::shared_ptr<Moment> Mark() const override {
    return std::make_shared<TimedEvent>(CurrentStream(device_));
  }

  // The others' watchdogs see the call in the log.
  WorkPtr Leave() override {
    const Collective leave{.kind = CollectiveKind::kLeave, .sequence = NextSequence()};
    Note(leave, "");
    auto work = std::make_shared<LeaveWork>(leave, state_);
    comparison_.Bring(TextOf(leave, hash_, watch_.Log()), [work] { work->all_left = true; });
    return work;
  }

  void Abort(const std::string& reason) override {
    Failure failure = GivenUp(world_rank(), reason);
    failure.operation = watch_.LastCall();
    watch_.Fail(failure);
  }

 private:
  // Ends when all ranks have made the call.
  struct LeaveWork : Work {
    LeaveWork(const Collective& leave, std::shared_ptr<FailureState> state)
        : Work(leave), state(std::move(state)) {}
    void Wait() override { Synchronize(); }
    void Synchronize() override {
      while (!all_left) {
        state->ThrowIfFailed(operation());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    bool Done() const override { return all_left || state->Get(); }
    std::optional<Span> span() const override { return std::nullopt; }

    const std::shared_ptr<FailureState> state;
    std::atomic<bool> all_left{false};
  };

  std::shared_ptr<ProcessGroup> MakePart(std::vector<int> members,
                                         const GroupOptions& options) override {
    return std::make_shared<NcclGroup>(std::move(members), control(), options, comm_.get(),
                                       watchdog_);
  }

  std::shared_ptr<NcclComm> Connect(NcclComm* parent) {
    std::shared_ptr<NcclComm> comm;
    const Collective start;
    const std::string purpose = "NCCL's communicator";
    Guard(start, purpose, [&] {
      if (parent != nullptr) {
        comm = parent->Split(members().front(), rank(), options().timeout, state_,
                             options().most_blocks);
      }
      if (comm) return;
      // The first rank's id, which the others do not know.
      ncclUniqueId id = {};
      if (rank() == 0) id = NcclComm::NewId();
      const std::string mine = rank() == 0 ? std::string(id.internal, sizeof(id.internal)) : "";
      const auto parties = Say(comparison_, mine, start, purpose);
      if (parties.empty() || parties.front().text.size() != sizeof(id.internal)) {
        throw MismatchError(
            StrCat("rank ", members().front(), " has sent no id of a communicator: do all ranks ",
                   "make the same groups, in the same build?"),
            {members().front()});
      }
      std::memcpy(id.internal, parties.front().text.data(), sizeof(id.internal));
      comm = std::make_shared<NcclComm>(id, rank(), size(), device_, options().timeout, state_,
                                        options().most_blocks);
    });
    return comm;
  }

  // What the ranks of the comparison say. Throws once the group has failed.
  std::vector<Party> Say(Comparison& comparison, const std::string& text, const Collective& c,
                         const std::string& purpose) {
    Patience& patience = watch_.Waits(c);
    auto next = Clock::now();
    auto parties = comparison.Run(text, [&] {
      if (!state_->Get() && !patience.Lasts() && Clock::now() >= next) {
        watch_.FailForTimeout(c, purpose, needs_, "", patience.since());
        next = Clock::now() + std::chrono::milliseconds(500);
      }
      return !state_->Get();
    });
    patience.End();
    if (!parties) state_->ThrowIfFailed(c, purpose);
    return *parties;
  }

  WorkPtr Submit(Call call) override {
    const Collective& c = call.collective;
    if (c.kind == CollectiveKind::kAllReduce || c.kind == CollectiveKind::kReduceScatter) {
      LS_CHECK(NcclReduces(c.dtype), Name(c.kind), " in group '", name(), "': NCCL cannot reduce ",
               c.dtype, "; convert it to i32");
    }
    Note(c, call.purpose);
    needs_ = watch_.Called(call.transfers);
    if (options().check_every_call) CheckCall(call);
    BumpVersions(call);
    const Stream caller = CurrentStream(device_);
    const bool captured = IsCapturing(caller);
    Event ready(device_);
    ready.Record(caller);
    ready.Wait(stream_);
    auto work =
        std::make_shared<NcclWork>(c, call.purpose, needs_, stream_, anchor_, captured, state_);
    if (!captured) KeepAlive(call);
    try {
      Guard(c, call.purpose, [&] { Enqueue(call); });
    } catch (...) {
      // A thread of NCCL's may still be about to launch it.
      for (const Tensor& x : {call.input, call.output, nothing_}) comm_->Keep(x);
      for (const Transfer& t : call.transfers) comm_->Keep(t.tensor);
      throw;
    }
    work->Submitted();
    if (!captured) {
      last_ = work;
      watch_.Watch(work);
    }
    return work;
  }

  // Records the call; throws if the group has failed.
  void Note(const Collective& c, const std::string& purpose) {
    if (options().recorder) options().recorder->Submit(name(), c, purpose);
    state_->ThrowIfFailed(c, purpose);
    // Not all ranks take part in exchanges.
    if (c.kind != CollectiveKind::kExchange) {
      hash_ = HashBytes(std::as_bytes(std::span(purpose)), Extend(hash_, c));
      watch_.Called(c);
    }
  }

  void Enqueue(const Call& call) {
    const Collective& c = call.collective;
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        if (c.count > 0) comm_->AllReduce(call.output, c.op, stream_);
        return;
      case CollectiveKind::kReduceScatter:
        if (c.count > 0) comm_->ReduceScatter(call.input, call.output, c.op, stream_);
        return;
      case CollectiveKind::kAllGather:
        if (c.count > 0) comm_->AllGather(call.input, call.output, stream_);
        return;
      case CollectiveKind::kBroadcast:
        if (c.count > 0) comm_->Broadcast(call.output, call.root, stream_);
        return;
      case CollectiveKind::kAllToAll:
        return comm_->Exchange(PartsOf(call), stream_);
      case CollectiveKind::kExchange:
        return comm_->Exchange(TransfersOf(call), stream_);
      case CollectiveKind::kBarrier:
      case CollectiveKind::kLeave:
        return comm_->AllReduce(nothing_, ReduceOp::kMax, stream_);
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
      if (t.tensor.numel() == 0) continue;
      parts.push_back({t.direction, t.tensor.raw_data(), t.tensor.bytes(), t.peer});
    }
    return parts;
  }

  // Makes the allocator reuse the memory only after this stream's work, that of `call` among it.
  void KeepAlive(const Call& call) const {
    if (call.input.defined()) call.input.storage().RecordUse(stream_);
    if (call.output.defined()) call.output.storage().RecordUse(stream_);
    for (const Transfer& t : call.transfers) t.tensor.storage().RecordUse(stream_);
  }

  // For dist.check=full.
  void CheckCall(const Call& call) {
    const Collective& c = call.collective;
    Guard(c, call.purpose, [&] {
      const bool is_exchange = c.kind == CollectiveKind::kExchange;
      if (!is_exchange) {
        CompareCallsAndPurposes(Say(comparison_, TextOf(c, call.purpose), c, call.purpose));
      }
      const auto traffic = is_exchange ? TrafficOf(call.transfers, size())
                                       : TrafficOf(call.input_counts, call.output_counts);
      std::set<int> peers;
      for (const Transfer& t : call.transfers) peers.insert(t.peer);
      // The counts are compared with the call, unless the parts differ.
      for (int p = 0; c.count < 0 && p < size(); ++p) peers.insert(p);
      peers.erase(rank());
      // Each rank takes its pairs in the order of (lower rank, higher rank), so that none waits for
      // another in a circle.
      for (const int p : peers) {
        const PairTraffic& mine = traffic[static_cast<size_t>(p)];
        ComparePair(Say(ComparisonWith(p), TextOf(mine), c, call.purpose), c, world_rank(),
                    members()[static_cast<size_t>(p)], mine);
      }
    });
  }

  Comparison& ComparisonWith(int peer) {
    auto& comparison = pairs_[peer];
    if (comparison == nullptr) {
      const std::vector<int> pair = {members()[static_cast<size_t>(std::min(rank(), peer))],
                                     members()[static_cast<size_t>(std::max(rank(), peer))]};
      comparison = std::make_unique<Comparison>(
          control(), StrCat(name(), "/ranks ", pair[0], " and ", pair[1]), pair);
    }
    return *comparison;
  }

  // Compares all ranks' calls so far.
  void Compare(const Collective& c) {
    Guard(c, "",
          [&] { CompareHistories(Say(comparison_, TextOf(c, hash_, watch_.Log()), c, ""), c); });
  }

  // An error in `f` becomes the group's failure, and is thrown as such.
  template <class F>
  void Guard(const Collective& c, const std::string& purpose, const F& f) {
    Failure failure{.rank = world_rank(), .operation = c, .purpose = purpose};
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
    } catch (const NcclTimeout& e) {
      watch_.FailForTimeout(c, purpose, needs_, e.what(), std::nullopt);
      state_->ThrowIfFailed(c, purpose);
    } catch (const NcclRemoteError& e) {
      watch_.FailForLostRank(c, e.what());
      state_->ThrowIfFailed(c, purpose);
    } catch (const Error& e) {
      failure.culprits = {world_rank()};
      failure.reason = StrCat("rank ", world_rank(), " failed: ", e.what());
    }
    watch_.Fail(failure);
    state_->ThrowIfFailed(c, purpose);
  }

  // Relates the stream to the host's clock. Call it only while the stream is idle.
  void DropAnchor() {
    auto event = std::make_shared<TimedEvent>(stream_);
    Synchronize(stream_);
    anchor_ = {std::move(event), Clock::now()};
  }

  const int exceptions_;
  const Device device_;
  const std::shared_ptr<FailureState> state_;
  const Stream stream_;  // NcclComm holds it too, as long as NCCL uses it
  const std::shared_ptr<NcclWatchdog> watchdog_;
  NcclWatch watch_;
  Comparison comparison_;
  std::map<int, std::unique_ptr<Comparison>> pairs_;  // by peer
  TransferCounts needs_;                              // of the latest call
  const std::shared_ptr<NcclComm> comm_;
  const Tensor nothing_;
  Anchor anchor_;
  uint64_t hash_ = 0;
  std::shared_ptr<NcclWork> last_;
};

class GroupsOfProcess : public NcclGroups {
 public:
  GroupsOfProcess(std::shared_ptr<ControlPlane> control, Device device)
      : control_(std::move(control)),
        device_(device),
        watchdog_(std::make_shared<NcclWatchdog>(control_, device)) {}

  // NCCL may need all ranks of a machine to end a communicator.
  ~GroupsOfProcess() override {
    if (root_ == nullptr) return;
    watchdog_->SetRoot(nullptr);
    const auto deadline = Clock::now() + kLeaveTime;
    Comparison all(control_, kRoot, AllRanks(control_->size()));
    if (!all.Run("", [&] { return !control_->failure() && Clock::now() < deadline; })) {
      root_->Abort();
    }
  }

  Device device() const override { return device_; }

  std::shared_ptr<ProcessGroup> Make(std::vector<int> members,
                                     const GroupOptions& options) override {
    LS_CHECK(options.device == device_, "group '", options.name, "' is on ", options.device,
             ", but this rank's GPU is ", device_);
    cuda::SetDevice(device_);
    LS_CUDA(cudaDeviceSynchronize());  // no operation may be in progress while NCCL splits
    const std::vector<int> all = AllRanks(control_->size());
    const auto make = [&](const std::vector<int>& ranks, const GroupOptions& o) {
      auto group = std::make_shared<NcclGroup>(ranks, control_, o, root_.get(), watchdog_);
      if (root_ == nullptr) watchdog_->SetRoot(root_ = group->comm());
      return group;
    };
    if (root_ == nullptr && members != all) {
      GroupOptions of_all = options;
      of_all.name = kRoot;
      make(all, of_all);  // its communicator is enough
    }
    return make(members, options);
  }

 private:
  static constexpr char kRoot[] = "world.gpus";
  static constexpr auto kLeaveTime = std::chrono::seconds(30);

  const std::shared_ptr<ControlPlane> control_;
  const Device device_;
  const std::shared_ptr<NcclWatchdog> watchdog_;
  std::shared_ptr<NcclComm> root_;  // of all ranks; once there is a group
};

}  // namespace

std::unique_ptr<NcclGroups> MakeNcclGroups(std::shared_ptr<ControlPlane> control, Device device) {
  LS_CHECK(device.is_cuda(), "NCCL works on GPUs, not on ", device);
  return std::make_unique<GroupsOfProcess>(std::move(control), device);
}

std::shared_ptr<ProcessGroup> MakeNcclGroup(std::shared_ptr<ControlPlane> control,
                                            const GroupOptions& options) {
  LS_CHECK(options.device.is_cuda(), "group '", options.name, "': NCCL works on GPUs, not on ",
           options.device);
  auto watchdog = std::make_shared<NcclWatchdog>(control, options.device);
  auto members = AllRanks(control->size());
  return std::make_shared<NcclGroup>(std::move(members), std::move(control), options,
                                     /*parent=*/nullptr, std::move(watchdog));
}

}  // namespace lockstep::dist
