#include "dist/groups/nccl_watchdog.h"

#include <algorithm>

#include "core/cuda/error.h"
#include "dist/flight/flight_recorder.h"
#include "dist/groups/host_collectives.h"

namespace lockstep::dist {
namespace {

using std::chrono::milliseconds;

constexpr auto kTick = milliseconds(20);
constexpr auto kCompare = milliseconds(500);
// An operation that takes longer is compared with the other ranks' calls.
constexpr auto kGrace = milliseconds(1500);

}  // namespace

NcclWatchdog::NcclWatchdog(Device device) : device_(device), thread_([this] { Run(); }) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatchdog::Add(NcclWatch* watch) {
  const std::lock_guard<std::mutex> lock(watches_mutex_);
  watches_.insert(watch);
}

void NcclWatchdog::Remove(NcclWatch* watch) {
  const std::scoped_lock lock(mutex_, watches_mutex_);
  watches_.erase(watch);
}

void NcclWatchdog::SetRoot(std::shared_ptr<NcclComm> root) {
  const std::lock_guard<std::mutex> lock(watches_mutex_);
  root_ = std::move(root);
}

void NcclWatchdog::Run() {
  // A thread that never sets a device opens a context on GPU 0.
  LS_CUDA_WARN(cudaSetDevice(device_.index));
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kTick, [this] { return stop_; })) {
    std::set<NcclWatch*> watches;
    {
      const std::lock_guard<std::mutex> guard(watches_mutex_);
      watches = watches_;
    }
    for (NcclWatch* const watch : watches) watch->Look();
  }
}

void NcclWatchdog::End(const Failure& failure) {
  const std::lock_guard<std::mutex> lock(watches_mutex_);
  std::vector<NcclComm*> comms;
  for (NcclWatch* const watch : watches_) {
    // Set the error before aborting, so that no waiter mistakes an aborted result for a good one.
    watch->state_->Set(failure);
    comms.push_back(watch->comm_);
    const GroupOptions& options = watch->options_;
    if (options.recorder && !watch->leaving_) options.recorder->Fail(options.name, failure);
  }
  if (root_ && std::find(comms.begin(), comms.end(), root_.get()) == comms.end()) {
    comms.push_back(root_.get());
  }
  NcclComm::Abort(comms);
}

NcclWatch::NcclWatch(std::shared_ptr<ControlPlane> control, std::vector<int> members,
                     const GroupOptions& options, std::shared_ptr<FailureState> state,
                     std::shared_ptr<NcclWatchdog> watchdog)
    : members_(std::move(members)),
      options_(options),
      state_(std::move(state)),
      control_(std::move(control)),
      watchdog_(std::move(watchdog)),
      patience_(control_, options),
      board_(control_, {.group = options.name,
                        .members = members_,
                        .on_failure =
                            [this](const Failure& f) {
                              state_->Set(f);
                              watchdog_->End(f);
                            },
                        .log = [this] { return Log(); },
                        .timeout = options.timeout,
                        .on_beat = [this] { patience_.Renew(); }}) {}

void NcclWatch::Start(NcclComm* comm) {
  comm_ = comm;
  watchdog_->Add(this);
}

void NcclWatch::Stop() { watchdog_->Remove(this); }

void NcclWatch::Called(const Collective& c) {
  const std::lock_guard<std::mutex> lock(mutex_);
  log_.Add(c);
  last_call_ = c;
}

Collective NcclWatch::LastCall() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_call_;
}

FlightLog NcclWatch::Log() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return log_;
}

void NcclWatch::Watch(std::shared_ptr<NcclWork> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (under_way_.empty()) patience_.Begin();
  under_way_.push_back(std::move(work));
}

void NcclWatch::Fail(const Failure& failure) {
  if (state_->Get()) return;
  const Failure counts = board_.Post(failure);
  state_->Set(counts);
  watchdog_->End(counts);
}

void NcclWatch::Look() {
  if (state_->Get()) return;
  std::optional<Collective> slow;
  std::string purpose;
  bool timed_out = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    try {
      while (!under_way_.empty() && under_way_.front()->HasFinished()) {
        if (options_.recorder) {
          options_.recorder->End(options_.name, under_way_.front()->operation());
        }
        under_way_.pop_front();
        patience_.Begin();
      }
    } catch (const Error&) {
      // The device has failed: whatever waits for it gets the error from CUDA.
      return;
    }
    if (under_way_.empty()) patience_.End();
    if (const auto since = patience_.since(); since && Clock::now() - *since > kGrace) {
      slow = under_way_.front()->operation();
      purpose = under_way_.front()->purpose();
      timed_out = patience_.IsOver();
    }
  }
  if (slow && Clock::now() >= next_comparison_) {
    CompareWithOthers(*slow, purpose);
    next_comparison_ = Clock::now() + kCompare;
  }
  if (slow && timed_out) FailForTimeout(*slow, purpose);
  const auto error = comm_->AsyncError();
  if (!error) return;
  // The control plane is about to name the rank whose process ended.
  if (!broken_since_) broken_since_ = Clock::now();
  if (Clock::now() < *broken_since_ + kCompare) return;
  Failure failure;
  failure.cause = CollectiveError::Cause::kLostRank;
  failure.rank = control_->rank();
  failure.operation = LastCall();
  failure.reason = *error;
  Fail(failure);
}

void NcclWatch::CompareWithOthers(const Collective& c, const std::string& purpose) {
  // The peers of an exchange compare it themselves.
  if (c.kind == CollectiveKind::kExchange) return;
  std::map<int, Collective> calls;
  for (const auto& [r, theirs] : board_.CallsAt(c.sequence).by_rank) {
    if (theirs.at) calls[r] = *theirs.at;
  }
  Failure failure;
  failure.cause = CollectiveError::Cause::kMismatch;
  failure.rank = control_->rank();
  failure.operation = c;
  failure.purpose = purpose;
  try {
    calls[failure.rank] = c;
    CompareCalls(calls);
  } catch (const MismatchError& e) {
    failure.culprits = e.culprits;
    failure.reason = e.what();
    Fail(failure);
  }
}

void NcclWatch::FailForTimeout(const Collective& c, const std::string& purpose) {
  Failure failure;
  failure.cause = CollectiveError::Cause::kTimeout;
  failure.rank = control_->rank();
  failure.operation = c;
  failure.purpose = purpose;
  failure.reason =
      StrCat("it did not end within ", static_cast<double>(options_.timeout.count()) / 1000, " s");
  const auto calls = board_.CallsAt(c.sequence);
  for (const auto& [r, theirs] : calls.by_rank) {
    if (c.kind == CollectiveKind::kExchange || theirs.last.sequence >= c.sequence) continue;
    failure.culprits.push_back(r);
    failure.reason += StrCat("; rank ", r, " did not take part, ",
                             theirs.last.sequence > 0 ? "its last call was " + Describe(theirs.last)
                                                      : "it has called nothing");
  }
  failure.culprits.insert(failure.culprits.end(), calls.silent.begin(), calls.silent.end());
  std::sort(failure.culprits.begin(), failure.culprits.end());
  failure.reason += SilenceClause(calls.silent) + patience_.PauseClause();
  Fail(failure);
}

}  // namespace lockstep::dist
