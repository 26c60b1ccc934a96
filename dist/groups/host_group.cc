#include "dist/groups/host_group.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "dist/content_hash.h"
#include "dist/control/awake_clock.h"
#include "dist/control/failure_board.h"
#include "dist/flight/flight_recorder.h"
#include "dist/groups/call_check.h"
#include "dist/groups/comparison.h"
#include "dist/groups/diagnosis.h"
#include "dist/groups/host_collectives.h"
#include "dist/groups/host_work.h"
#include "dist/groups/patience.h"

namespace lockstep::dist {
namespace {

using Clock = Work::Clock;

// How long a rank waits for the others' information before it names the ranks at fault.
constexpr auto kTimeoutsDelay = std::chrono::seconds(1);
constexpr auto kLostRanksDelay = std::chrono::milliseconds(1500);
constexpr auto kOtherReportsDelay = std::chrono::seconds(3);

class HostGroup : public ProcessGroup {
 public:
  HostGroup(std::unique_ptr<Transport> transport, std::shared_ptr<ControlPlane> control,
            const GroupOptions& options)
      : ProcessGroup(transport->members(), options, std::move(control)),
        exceptions_(std::uncaught_exceptions()),
        transport_(std::move(transport)),
        collectives_(*transport_, options.check_every_call),
        patience_(ProcessGroup::control(), options),
        board_(ProcessGroup::control(), {.group = options.name,
                                         .members = members(),
                                         .on_failure = [this](const Failure& f) { Learn(f); },
                                         .position = [this] { return Position(); },
                                         .timeout = options.timeout,
                                         .on_beat = [this] { AllowForPause(); }}),
        worker_([this] { RunQueue(); }) {}

  ~HostGroup() override {
    if (std::uncaught_exceptions() > exceptions_) {
      Abort("its group was destroyed by an exception");
    } else {
      try {
        HostGroup::Leave()->Synchronize();
      } catch (const Error&) {
        // The others were told, and throw; it does not matter to a rank that leaves.
      }
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
    control()->ForgetWaits(name());
  }

  Device device() const override { return kCpu; }

  // Every call is compared, so a barrier is enough.
  void CheckInStep() override { Barrier()->Synchronize(); }

  void Abort(const std::string& reason) override {
    Failure failure = GivenUp(world_rank(), reason);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_) return;
      failure.operation = running_;
      failure.purpose = purpose_running_;
    }
    Learn(board_.Post(failure));
  }

 private:
  struct Item {
    Call call;
    std::shared_ptr<HostWork> work;
  };

  std::shared_ptr<ProcessGroup> MakePart(std::vector<int> members,
                                         const GroupOptions& options) override {
    return MakeHostGroup(transport_->Split(options.name, std::move(members)), control(), options);
  }

  WorkPtr Submit(Call call) override {
    leaving_ = call.collective.kind == CollectiveKind::kLeave;
    BumpVersions(call);
    auto work = std::make_shared<HostWork>(call.collective, call.purpose, name(), world_rank());
    if (recorder()) recorder()->Submit(name(), call.collective, call.purpose);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_) throw ErrorOf(*failure_, name(), world_rank(), call.collective, call.purpose);
      queue_.push_back({std::move(call), work});
    }
    changed_.notify_all();
    return work;
  }

  void RunQueue() {
    while (true) {
      std::optional<Item> item;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        item = std::move(queue_.front());
        queue_.pop_front();
        running_ = item->call.collective;
        purpose_running_ = item->call.purpose;
        busy_ = true;
      }
      patience_.Begin();
      control()->BeginWait(name(), item->call.collective, item->call.purpose);
      if (recorder()) recorder()->Begin(name(), item->call.collective);
      const auto begin = Clock::now();
      auto failure = RunOrFail(item->call);
      patience_.End();
      control()->EndWait(name());
      if (!failure && recorder()) recorder()->End(name(), item->call.collective);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        busy_ = failure.has_value();
      }
      // Release the tensors before reporting that the operation is done.
      item->call = {};
      item->work->End({begin, Clock::now(), collectives_.receiving()}, std::move(failure));
    }
  }

  // Runs the call; returns the failure, if any, of this call or an earlier one.
  std::optional<Failure> RunOrFail(const Call& call) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_) return failure_;
    }
    Failure mine{.rank = world_rank(), .operation = call.collective, .purpose = call.purpose};
    try {
      Run(call);
      return std::nullopt;
    } catch (const MismatchError& e) {
      mine.cause = CollectiveError::Cause::kMismatch;
      mine.culprits = e.culprits;
      mine.reason = e.what() + CallsHere();
    } catch (const TransportError& e) {
      Explain(e, call.collective, &mine);
      // Post the reason before the connections close.
      Failure failure = ResolveFailure(mine);
      transport_->Close();
      return failure;
    } catch (const std::exception& e) {
      mine.culprits = {world_rank()};
      mine.reason = StrCat("rank ", world_rank(), " failed: ", e.what());
    }
    return ResolveFailure(mine);
  }

  // What the group's ranks called that led here, where that differs.
  std::string CallsHere() {
    Answers<RankWaits> waits = control()->Waits(name(), std::chrono::milliseconds(0));
    std::set<std::string> calls;
    for (auto& [rank, of_rank] : waits.by_rank) {
      std::erase_if(of_rank.calls, [&](const auto& call) { return call.first != name(); });
      for (const auto& call : of_rank.calls) calls.insert(call.second);
    }
    const bool tells = std::ranges::any_of(
        calls, [](const auto& call) { return call.find(" of ") != std::string::npos; });
    return calls.size() > 1 && tells ? Describe(waits) : "";
  }

  void Explain(const TransportError& e, const Collective& c, Failure* failure) {
    Diagnosis verdict{e.peers, e.what()};
    switch (e.cause) {
      case TransportError::Cause::kLostRank:
        failure->cause = CollectiveError::Cause::kLostRank;
        verdict = ExplainLost(ShareLost(e.peers));
        verdict.reason += StrCat(" (", e.what(), ")");
        break;
      case TransportError::Cause::kTimeout:
        failure->cause = CollectiveError::Cause::kTimeout;
        board_.ShareLost({});
        verdict = ExplainTimeout(board_.Positions(), members(), c, world_rank(), e.peers,
                                 options().timeout);
        verdict.reason +=
            Describe(control()->Waits(name(), kTimeoutsDelay)) + patience_.PauseClause();
        if (verdict.others_know_better) WaitForFailure(kOtherReportsDelay);
        break;
      case TransportError::Cause::kCorrupt:
        failure->cause = CollectiveError::Cause::kCorrupt;
        break;
      case TransportError::Cause::kInterrupted:
        break;
    }
    failure->culprits = std::move(verdict.culprits);
    failure->reason = std::move(verdict.reason);
  }

  // The connections that have ended, by the rank that reports them. Waits a moment for all ranks'
  // reports.
  Answers<std::vector<int>> ShareLost(const std::vector<int>& mine) {
    board_.ShareLost(mine);
    const auto deadline = AwakeClock::now() + kLostRanksDelay;
    Answers<std::vector<int>> lost;
    do {
      lost = board_.Lost();
      auto& by_rank = lost.by_rank;
      by_rank[world_rank()] = mine;
      const bool by_timeout = std::any_of(mine.begin(), mine.end(), [&](int peer) {
        return by_rank.contains(peer) && by_rank[peer].empty();
      });
      // That peer timed out, and is about to report which ranks it waited for.
      if (by_timeout) WaitForFailure(kTimeoutsDelay + 2 * kOtherReportsDelay);
    } while (std::ssize(lost.by_rank) < size() && AwakeClock::now() < deadline &&
             !WaitForFailure(std::chrono::milliseconds(20)));
    return lost;
  }

  // Returns true as soon as a failure is known, false after `at_most`.
  bool WaitForFailure(std::chrono::milliseconds at_most) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, at_most, [this] { return failure_.has_value(); });
  }

  CallPosition Position() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {running_, collectives_.step(), busy_};
  }

  void AllowForPause() {
    if (patience_.Renew()) transport_->Extend(AwakeClock::now() + options().timeout);
    control()->LookAtWait(name(), members(), options().timeout);
  }

  FlightRecorder* recorder() const { return options().recorder.get(); }

  // The failure that counts: one known before, else the first that any rank posts, which may be
  // `mine`.
  Failure ResolveFailure(const Failure& mine) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_) return *failure_;
    }
    Learn(board_.Post(mine));
    const std::lock_guard<std::mutex> lock(mutex_);
    return *failure_;
  }

  // Any thread may call it.
  void Learn(const Failure& failure) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_) return;
      failure_ = failure;
    }
    changed_.notify_all();
    transport_->Interrupt();
    if (recorder() && !leaving_) recorder()->Fail(name(), failure);
  }

  void Run(const Call& call) {
    const Collective& c = call.collective;
    const auto deadline = AwakeClock::now() + options().timeout;
    if (c.kind == CollectiveKind::kExchange) return RunExchange(call, deadline);
    std::vector<PairTraffic> traffic;
    if (c.count < 0) traffic = TrafficOf(call.input_counts, call.output_counts);
    const uint64_t purpose = HashBytes(std::as_bytes(std::span(call.purpose)));
    if (!collectives_.CheckCall(c, purpose, traffic, deadline)) FindDifference(c, call.purpose);
    void* const out = call.output.defined() ? call.output.raw_data() : nullptr;
    const void* const in = call.input.defined() ? call.input.raw_data() : nullptr;
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        return collectives_.AllReduce(c.op, c.dtype, out, c.count, deadline);
      case CollectiveKind::kReduceScatter:
        return collectives_.ReduceScatter(c.op, c.dtype, in, out, c.count, deadline);
      case CollectiveKind::kAllGather:
        return collectives_.AllGather(c.dtype, in, out, c.count, deadline);
      case CollectiveKind::kBroadcast:
        return collectives_.Broadcast(out, c.count * SizeOf(c.dtype), call.root, deadline);
      case CollectiveKind::kAllToAll:
        return collectives_.AllToAll(c.dtype, in, call.input_counts, out, call.output_counts,
                                     deadline);
      case CollectiveKind::kExchange:
      case CollectiveKind::kBarrier:
      case CollectiveKind::kLeave:
        return;
    }
  }

  void RunExchange(const Call& call, Transport::Deadline deadline) {
    std::set<int> peers;
    std::vector<Transport::Outgoing> outgoing;
    std::vector<Transport::Incoming> incoming;
    for (const Transfer& t : call.transfers) {
      peers.insert(t.peer);
      if (t.direction == Transfer::Direction::kSend) {
        outgoing.push_back({t.peer, t.tensor.raw_data(), t.tensor.bytes()});
      } else {
        incoming.push_back({t.peer, t.tensor.raw_data(), t.tensor.bytes()});
      }
    }
    const auto traffic = TrafficOf(call.transfers, size());
    collectives_.CheckExchange(call.collective, std::vector<int>(peers.begin(), peers.end()),
                               traffic, deadline);
    collectives_.Exchange(outgoing, incoming, deadline);
  }

  // All ranks know that their calls differ, and none knows all of these.
  void FindDifference(const Collective& c, const std::string& purpose) {
    Comparison comparison(control(), name(), members());
    const auto parties = comparison.Run(TextOf(c, purpose), [this] {
      return !WaitForFailure(std::chrono::milliseconds(0)) && patience_.Lasts();
    });
    if (parties) CompareCallsAndPurposes(*parties);
    std::vector<int> others = members();
    others.erase(others.begin() + rank());
    throw TransportError(
        parties ? TransportError::Cause::kCorrupt : TransportError::Cause::kTimeout, others,
        "ranks have heard of different calls, but do not say which");
  }

  const int exceptions_;
  const std::unique_ptr<Transport> transport_;
  HostCollectives collectives_;
  Patience patience_;  // of the running call

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  Collective running_;  // the last one that ran, unless busy_
  std::string purpose_running_;
  bool busy_ = false;
  std::atomic<bool> leaving_{false};
  std::optional<Failure> failure_;
  bool stop_ = false;

  FailureBoard board_;
  std::thread worker_;  // last: it uses the others
};

}  // namespace

std::shared_ptr<ProcessGroup> MakeHostGroup(std::unique_ptr<Transport> transport,
                                            std::shared_ptr<ControlPlane> control,
                                            const GroupOptions& options) {
  return std::make_shared<HostGroup>(std::move(transport), std::move(control), options);
}

}  // namespace lockstep::dist
