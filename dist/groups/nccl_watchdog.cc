#include "dist/groups/nccl_watchdog.h"

#include "core/cuda/error.h"
#include "dist/control/flight_recorder.h"
#include "dist/control/pause.h"
#include "dist/groups/host_collectives.h"

namespace lockstep::dist {
namespace {

using std::chrono::milliseconds;

constexpr auto kTick = milliseconds(20);
constexpr auto kCompare = milliseconds(500);
// An operation that takes longer is compared with the other ranks' calls.
constexpr auto kGrace = milliseconds(1500);

}  // namespace

NcclWatchdog::NcclWatchdog(std::shared_ptr<ControlPlane> control, const GroupOptions& options,
                           NcclComm* comm, std::shared_ptr<FailureState> state)
    : rank_(control->rank()),
      options_(options),
      comm_(comm),
      state_(std::move(state)),
      control_(std::move(control)),
      board_(control_, {.group = options.name,
                        .members = AllRanks(control_->size()),
                        .on_failure = [this](const Failure& f) { Learn(f); },
                        .log = [this] { return Log(); },
                        .timeout = options.timeout,
                        .on_beat = [this] { AllowForPause(); }}),
      thread_([this] { Run(); }) {}

void NcclWatchdog::Called(const Collective& c) {
  const std::lock_guard<std::mutex> lock(mutex_);
  log_.Add(c);
  last_call_ = c;
}

Collective NcclWatchdog::LastCall() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_call_;
}

FlightLog NcclWatchdog::Log() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return log_;
}

void NcclWatchdog::Watch(std::shared_ptr<NcclWork> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (under_way_.empty()) turn_ = Clock::now();
  under_way_.push_back(std::move(work));
}

void NcclWatchdog::Fail(const Failure& failure) {
  if (!state_->Get()) Learn(board_.Post(failure));
}

void NcclWatchdog::Learn(const Failure& failure) {
  // Set the error before aborting, so that no waiter mistakes an aborted result for a good one.
  if (!state_->Set(failure)) return;
  comm_->Abort();
  if (options_.recorder && !leaving_) options_.recorder->Fail(options_.name, failure);
}

void NcclWatchdog::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stop_) return;
    stop_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

void NcclWatchdog::Run() {
  // A thread that never sets a device opens a context on GPU 0.
  LS_CUDA_WARN(cudaSetDevice(comm_->device().index));
  auto next_comparison = Clock::now();
  while (!state_->Get()) {
    std::optional<Collective> slow;
    std::string purpose;
    bool timed_out = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (stopped_.wait_for(lock, kTick, [this] { return stop_; })) break;
      try {
        while (!under_way_.empty() && under_way_.front()->HasFinished()) {
          if (options_.recorder) {
            options_.recorder->End(options_.name, under_way_.front()->operation());
          }
          under_way_.pop_front();
          turn_ = Clock::now();
        }
      } catch (const Error&) {
        // The device has failed: whatever waits for it gets the error from CUDA.
        return;
      }
      if (!under_way_.empty() && Clock::now() - turn_ > kGrace) {
        slow = under_way_.front()->operation();
        purpose = under_way_.front()->purpose();
        timed_out = Clock::now() - turn_ > options_.timeout;
      }
    }
    if (slow && Clock::now() >= next_comparison) {
      CompareWithOthers(*slow, purpose);
      next_comparison = Clock::now() + kCompare;
    }
    if (slow && timed_out) FailForTimeout(*slow, purpose);
    if (const auto error = comm_->AsyncError()) {
      Failure failure;
      failure.cause = CollectiveError::Cause::kLostRank;
      failure.rank = rank_;
      failure.operation = LastCall();
      failure.reason = *error;
      // The control plane is about to name the rank whose process ended.
      std::unique_lock<std::mutex> lock(mutex_);
      stopped_.wait_for(lock, kCompare, [this] { return stop_; });
      lock.unlock();
      Fail(failure);
    }
  }
}

void NcclWatchdog::CompareWithOthers(const Collective& c, const std::string& purpose) {
  // The peers of an exchange compare it themselves.
  if (c.kind == CollectiveKind::kExchange) return;
  std::map<int, Collective> calls;
  for (const auto& [r, log] : board_.Logs()) {
    if (const auto call = log.At(c.sequence)) calls[r] = *call;
  }
  Failure failure;
  failure.cause = CollectiveError::Cause::kMismatch;
  failure.rank = rank_;
  failure.operation = c;
  failure.purpose = purpose;
  try {
    calls[rank_] = c;
    CompareCalls(calls);
  } catch (const MismatchError& e) {
    failure.culprits = e.culprits;
    failure.reason = e.what();
    Fail(failure);
  }
}

// As HostGroup does.
void NcclWatchdog::AllowForPause() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (under_way_.empty() || Clock::now() < turn_ + options_.timeout / 2) return;
  }
  const auto pause = board_.LivePause();
  if (!pause) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    turn_ = Clock::now();
  }
  ReportPause(options_, *control_, *pause);
}

void NcclWatchdog::FailForTimeout(const Collective& c, const std::string& purpose) {
  Failure failure;
  failure.cause = CollectiveError::Cause::kTimeout;
  failure.rank = rank_;
  failure.operation = c;
  failure.purpose = purpose;
  failure.reason =
      StrCat("it did not end within ", static_cast<double>(options_.timeout.count()) / 1000, " s");
  for (const auto& [r, log] : board_.Logs()) {
    if (c.kind == CollectiveKind::kExchange || log.last() >= c.sequence) continue;
    failure.culprits.push_back(r);
    const auto last = log.At(log.last());
    failure.reason +=
        StrCat("; rank ", r, " did not take part, ",
               last ? "its last call was " + Describe(*last) : "it has called nothing");
  }
  failure.reason += board_.PauseClause();
  Fail(failure);
}

}  // namespace lockstep::dist
