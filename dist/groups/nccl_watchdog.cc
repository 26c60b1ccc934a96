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
// How long ranks that wait for others themselves have to say so.
constexpr auto kOthersTime = milliseconds(3000);
// The number of ranks whose calls an error shows.
constexpr size_t kShown = 4;

bool HasLasted(const Patience& patience) {
  const auto since = patience.since();
  return since && Patience::Clock::now() > *since + kGrace;
}

// "rank 1 did not take part, its last call was all_reduce #6 (f32[8], sum)"
std::string DescribeAbsent(int rank, const FailureBoard::Calls& theirs, bool in_exchange) {
  if (!theirs.has_group) return StrCat("rank ", rank, " has not made the group");
  std::string last = theirs.last.sequence == 0
                         ? StrCat("it has called ", in_exchange ? "no collective" : "nothing")
                         : StrCat("its last ", in_exchange ? "collective" : "call", " was ",
                                  Describe(theirs.last));
  if (!theirs.waits_in.empty()) last = "it waits in " + theirs.waits_in;
  return StrCat("rank ", rank, " did not take part, ", last);
}

}  // namespace

NcclWatchdog::NcclWatchdog(std::shared_ptr<ControlPlane> control, Device device)
    : control_(std::move(control)), device_(device), thread_([this] { Run(); }) {}

NcclWatchdog::~NcclWatchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatchdog::Add(NcclWatch* watch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watches_.insert(watch);
}

void NcclWatchdog::Remove(NcclWatch* watch) {
  std::unique_lock<std::mutex> lock(mutex_);
  watches_.erase(watch);
  changed_.wait(lock, [&] { return looks_at_ != watch; });
}

void NcclWatchdog::SetRoot(std::shared_ptr<NcclComm> root) {
  const std::lock_guard<std::mutex> lock(mutex_);
  root_ = std::move(root);
}

void NcclWatchdog::Run() {
  // A thread that never sets a device opens a context on GPU 0.
  LS_CUDA_WARN(cudaSetDevice(device_.index));
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, kTick, [this] { return stop_; })) {
    for (NcclWatch* const watch : std::set<NcclWatch*>(watches_)) {
      if (!watches_.contains(watch)) continue;
      looks_at_ = watch;
      lock.unlock();
      watch->Look();
      lock.lock();
      looks_at_ = nullptr;
      changed_.notify_all();
    }
  }
}

void NcclWatchdog::End(const Failure& failure) {
  std::vector<std::shared_ptr<NcclComm>> comms;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (NcclWatch* const watch : watches_) {
      // All of them before the abort, so that no waiter mistakes an aborted result for a good one.
      if (watch->Learn(failure)) comms.push_back(watch->comm_);
    }
    if (root_ && std::find(comms.begin(), comms.end(), root_) == comms.end()) {
      comms.push_back(root_);
    }
  }
  if (comms.empty()) return;
  control_->PostBlocking([comms = std::move(comms)] { NcclComm::Abort(comms); });
}

std::string NcclWatchdog::WaitsIn() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const NcclWatch* const watch : watches_) {
    if (std::string what = watch->WaitsIn(); !what.empty()) return what;
  }
  return "";
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
      comparing_(control_, options),
      board_(control_, {.group = options.name,
                        .members = members_,
                        .on_failure =
                            [this](const Failure& f) {
                              watchdog_->End(f);
                              Learn(f);  // it may not be watched yet
                            },
                        .log =
                            [this] {
                              std::string waits_in = watchdog_->WaitsIn();
                              const std::lock_guard<std::mutex> lock(mutex_);
                              return CallLog{log_, transfers_, std::move(waits_in)};
                            },
                        .timeout = options.timeout,
                        .on_beat = [this] { patience_.Renew(); }}) {}

void NcclWatch::Start(std::shared_ptr<NcclComm> comm) {
  comm_ = std::move(comm);
  watchdog_->Add(this);
}

void NcclWatch::Stop() {
  watchdog_->Remove(this);
  comm_ = nullptr;
}

void NcclWatch::Called(const Collective& c) {
  const std::lock_guard<std::mutex> lock(mutex_);
  log_.Add(c);
  last_call_ = c;
}

TransferCounts NcclWatch::Called(const std::vector<Transfer>& transfers) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TransferCounts needs;
  for (const Transfer& t : transfers) {
    const std::pair end(members_[static_cast<size_t>(t.peer)],
                        t.direction == Transfer::Direction::kReceive);
    needs[end] = ++transfers_[end];
  }
  return needs;
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

Patience& NcclWatch::Waits(const Collective& c) {
  const std::lock_guard<std::mutex> lock(mutex_);
  compared_ = c;
  comparing_.Begin();
  return comparing_;
}

std::string NcclWatch::WaitsIn() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool compares = HasLasted(comparing_);
  if (!compares && (under_way_.empty() || !HasLasted(patience_))) return "";
  const Collective& c = compares ? compared_ : under_way_.front()->operation();
  return StrCat(Describe(c), " of group '", options_.name, "'");
}

std::shared_ptr<NcclWork> NcclWatch::First() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return under_way_.empty() ? nullptr : under_way_.front();
}

void NcclWatch::Fail(const Failure& failure) {
  if (state_->Get()) return;
  const Failure counts = board_.Post(failure);
  watchdog_->End(counts);
  Learn(counts);
}

bool NcclWatch::Learn(const Failure& failure) {
  if (!state_->Set(failure)) return false;
  if (options_.recorder && !leaving_) options_.recorder->Fail(options_.name, failure);
  return true;
}

void NcclWatch::Look() {
  if (state_->Get()) return;
  std::shared_ptr<NcclWork> first;
  try {
    while ((first = First()) && first->HasFinished()) {
      if (options_.recorder) options_.recorder->End(options_.name, first->operation());
      const std::lock_guard<std::mutex> lock(mutex_);
      under_way_.pop_front();
      under_way_.empty() ? patience_.End() : patience_.Begin();
    }
  } catch (const Error&) {
    // The device has failed: whatever waits for it gets the error from CUDA.
    return;
  }
  const auto since = patience_.since();
  if (first && HasLasted(patience_) && Clock::now() >= next_comparison_) {
    CompareWithOthers(*first);
    if (patience_.IsOver()) {
      FailForTimeout(first->operation(), first->purpose(), first->needs(), "", since);
    }
    next_comparison_ = Clock::now() + kCompare;
  }
  const auto error = comm_->AsyncError();
  if (!error) return;
  // The control plane is about to name the rank whose process ended.
  if (!broken_since_) broken_since_ = Clock::now();
  if (Clock::now() < *broken_since_ + kCompare) return;
  FailForNccl(*error, first ? first->operation() : LastCall());
}

// Whether the rank has called what `c` needs of it.
bool NcclWatch::TakesPart(const Collective& c, const TransferCounts& needs, int rank,
                          const FailureBoard::Calls& theirs) const {
  if (c.sequence == 0) return theirs.has_group;
  if (c.kind != CollectiveKind::kExchange) return theirs.last.sequence >= c.sequence;
  return std::all_of(needs.begin(), needs.end(), [&](const auto& need) {
    const auto& [end, number] = need;
    if (end.first != rank) return true;
    const auto at = theirs.transfers.find({control_->rank(), !end.second});
    return at != theirs.transfers.end() && at->second >= number;
  });
}

void NcclWatch::CompareWithOthers(const NcclWork& work) {
  const Collective& c = work.operation();
  std::map<int, Collective> calls;
  for (const auto& [r, theirs] : board_.CallsAt(c.sequence).by_rank) {
    if (c.kind != CollectiveKind::kExchange) {
      if (theirs.at) calls[r] = *theirs.at;
    } else if (theirs.last.kind == CollectiveKind::kLeave &&
               !TakesPart(c, work.needs(), r, theirs)) {
      calls[r] = theirs.last;
    }
  }
  calls[control_->rank()] = c;
  Failure failure{.cause = CollectiveError::Cause::kMismatch,
                  .rank = control_->rank(),
                  .operation = c,
                  .purpose = work.purpose()};
  try {
    CompareCalls(calls);
  } catch (const MismatchError& e) {
    failure.culprits = e.culprits;
    failure.reason = e.what();
    Fail(failure);
  }
}

void NcclWatch::FailForTimeout(const Collective& c, const std::string& purpose,
                               const TransferCounts& needs, const std::string& where,
                               std::optional<Clock::time_point> since) {
  Failure failure{.cause = CollectiveError::Cause::kTimeout,
                  .rank = control_->rank(),
                  .operation = c,
                  .purpose = purpose};
  failure.reason =
      StrCat("it did not end within ", static_cast<double>(options_.timeout.count()) / 1000, " s",
             where.empty() ? "" : " in " + where);
  const auto calls = board_.CallsAt(c.sequence);
  std::map<int, FailureBoard::Calls> absent;
  bool all_wait = calls.silent.empty();
  for (const auto& [r, theirs] : calls.by_rank) {
    if (TakesPart(c, needs, r, theirs)) continue;
    absent[r] = theirs;
    all_wait &= !theirs.waits_in.empty();
  }
  // Ranks that wait for others are not to blame, if there are any that do not.
  std::vector<int> more;
  for (const auto& [r, theirs] : absent) {
    if (!all_wait && !theirs.waits_in.empty()) continue;
    failure.culprits.push_back(r);
    if (failure.culprits.size() > kShown) {
      more.push_back(r);
    } else {
      failure.reason += "; " + DescribeAbsent(r, theirs, c.kind == CollectiveKind::kExchange);
    }
  }
  if (!more.empty()) failure.reason += StrCat("; nor did ", ListRanks(more));
  failure.culprits.insert(failure.culprits.end(), calls.silent.begin(), calls.silent.end());
  std::sort(failure.culprits.begin(), failure.culprits.end());
  if (failure.culprits.empty()) {
    failure.reason +=
        "; all ranks that it needs take part: does a GPU hang, or is the network cut?";
  } else if (all_wait && since && Clock::now() < *since + options_.timeout + kOthersTime) {
    return;
  }
  failure.reason += SilenceClause(calls.silent) + patience_.PauseClause();
  Fail(failure);
}

void NcclWatch::FailForLostRank(const Collective& c, const std::string& error) {
  for (const auto until = Clock::now() + kCompare; Clock::now() < until;) {
    if (state_->Get()) return;
    std::this_thread::sleep_for(milliseconds(5));
  }
  FailForNccl(error, c);
}

// NCCL's error names no rank, except perhaps the address of one.
void NcclWatch::FailForNccl(const std::string& error, const Collective& c) {
  Failure failure{.cause = CollectiveError::Cause::kLostRank,
                  .rank = control_->rank(),
                  .operation = c,
                  .reason = error};
  const auto calls = board_.CallsAt(c.sequence);
  failure.culprits = calls.silent;
  for (const auto& [r, theirs] : calls.by_rank) {
    if (theirs.has_group) continue;
    failure.culprits.push_back(r);
    failure.reason += StrCat("; rank ", r, " has no group '", options_.name, "'");
  }
  std::sort(failure.culprits.begin(), failure.culprits.end());
  if (failure.culprits.empty()) {
    failure.reason += "; no rank is known to be gone: is the network cut?";
  }
  failure.reason += SilenceClause(calls.silent);
  Fail(failure);
}

}  // namespace lockstep::dist
