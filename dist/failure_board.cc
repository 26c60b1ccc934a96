#include "dist/failure_board.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"

namespace lockstep::dist {
namespace {

using nlohmann::json;

constexpr char kKey[] = "failure";

std::string KeyOf(const char* what, int rank) { return StrCat(what, "/", rank); }

json ToJson(const Failure& f) {
  return {{"cause", static_cast<int>(f.cause)},
          {"rank", f.rank},
          {"operation", ToValues(f.operation)},
          {"purpose", f.purpose},
          {"culprits", f.culprits},
          {"reason", f.reason}};
}

Collective CollectiveOf(const json& j) {
  const auto values = j.get<std::vector<int64_t>>();
  const auto call = CollectiveFromValues(values);
  if (!call) throw StoreError("an operation is none");
  return *call;
}

Failure Parse(const std::string& text, const std::string& store) {
  try {
    const json j = ParseJson(text, "its text");
    Failure f;
    f.cause = static_cast<CollectiveError::Cause>(j.at("cause").get<int>());
    f.rank = j.at("rank").get<int>();
    f.operation = CollectiveOf(j.at("operation"));
    f.purpose = j.at("purpose").get<std::string>();
    f.culprits = j.at("culprits").get<std::vector<int>>();
    f.reason = j.at("reason").get<std::string>();
    return f;
  } catch (const std::exception& error) {
    Failure f;
    f.reason = StrCat(store, " holds a failure that cannot be read: ", error.what());
    return f;
  }
}

}  // namespace

CollectiveError ErrorOf(const Failure& failure, const std::string& group, int rank,
                        const Collective& operation, const std::string& purpose) {
  const auto of = [](const Collective& c, const std::string& what_for) {
    return Describe(c) + (what_for.empty() ? "" : StrCat(" of ", what_for));
  };
  std::string what = StrCat("rank ", rank, ", group '", group, "', ", of(operation, purpose), ": ",
                            failure.reason);
  const bool by_itself = failure.culprits == std::vector<int>{failure.rank};
  if (failure.rank != rank) {
    // Whoever gave up says so in the reason.
    if (!by_itself)
      what += StrCat(" (reported by rank ", failure.rank, " in ",
                     of(failure.operation, failure.purpose), ")");
  } else if (failure.operation.sequence > 0 && failure.operation != operation) {
    what += StrCat(" (in ", of(failure.operation, failure.purpose), ")");
  }
  return CollectiveError(what, failure.cause, rank, operation, failure.culprits);
}

void FirstFailure::Learn(const std::string& group, const Failure& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool mine = failure.cause == CollectiveError::Cause::kAborted && failure.rank == rank_;
  if (failure_ || mine) return;
  group_ = group;
  failure_ = failure;
}

Failure FirstFailure::GiveUp(const std::string& reason) const {
  Failure failure;
  failure.rank = rank_;
  failure.cause = CollectiveError::Cause::kAborted;
  failure.culprits = {rank_};
  failure.reason = StrCat("rank ", rank_, " gave up: ", reason);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_) {
    failure.cause = failure_->cause;
    failure.culprits = failure_->culprits;
    failure.reason =
        StrCat(failure_->reason, "; hearing of it in group '", group_, "', ", failure.reason);
  }
  return failure;
}

FailureBoard::FailureBoard(Store& store, Options options)
    : options_(std::move(options)), post_(store.Clone()), watch_(store.Clone()) {
  const int rank = options_.rank;
  Failure gone;
  gone.cause = CollectiveError::Cause::kLostRank;
  gone.rank = rank;
  gone.culprits = {rank};
  gone.reason = StrCat("rank ", rank, " is gone: its process ended");
  Failure silent = gone;
  silent.cause = CollectiveError::Cause::kTimeout;
  const auto seconds = [](Milliseconds time) { return static_cast<double>(time.count()) / 1e3; };
  const Milliseconds silence =
      options_.heartbeat.count() > 0 ? options_.heartbeat - 2 * BeatTime() : Milliseconds(0);
  silent.reason =
      StrCat("rank ", rank, " is stalled: no sign of life of its process for ", seconds(silence),
             " s, with a heartbeat limit of ", seconds(options_.heartbeat),
             " s (stopped, starved of memory, or cut off from the network)");
  post_->SetWill(kKey, DumpJson(ToJson(gone)), DumpJson(ToJson(silent)), silence);
  watcher_ = std::thread([this] { Watch(); });
  heart_ = std::thread([this] { Beat(); });
}

FailureBoard::~FailureBoard() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  watch_->Interrupt();
  post_->Interrupt();
  watcher_.join();
  heart_.join();
}

void FailureBoard::Leave() {
  try {
    post_->ClearWill();
  } catch (const StoreError&) {
    // Then the store is gone, and so is the will.
  }
}

Failure FailureBoard::Post(const Failure& failure) {
  try {
    return Parse(post_->SetIfAbsent(kKey, DumpJson(ToJson(failure))), post_->Describe());
  } catch (const StoreError& error) {
    Failure with = failure;
    with.reason += StrCat("; the other ranks could not be told: ", error.what());
    return with;
  }
}

std::map<int, CallPosition> FailureBoard::Positions(int size) {
  std::map<int, CallPosition> positions;
  for (int r = 0; r < size; ++r) {
    if (r == options_.rank) {
      positions[r] = options_.position();
      continue;
    }
    try {
      const auto text = post_->Get(KeyOf("position", r), Milliseconds(0));
      if (!text) continue;
      const json j = TryParseJson(*text);
      positions[r] = {CollectiveOf(j.at(0)), j.at(1).get<int64_t>(), j.at(2).get<bool>()};
    } catch (const std::exception&) {
      // Nothing is known of it.
    }
  }
  return positions;
}

void FailureBoard::ShareLost(const std::vector<int>& lost) {
  try {
    post_->Set(KeyOf("lost", options_.rank), DumpJson(json(lost)));
  } catch (const StoreError&) {
    // Then what this rank has seen must do.
  }
}

std::map<int, std::vector<int>> FailureBoard::Lost(int size) {
  std::map<int, std::vector<int>> all;
  try {
    for (int r = 0; r < size; ++r) {
      const auto text = post_->Get(KeyOf("lost", r), Milliseconds(0));
      if (text) all[r] = TryParseJson(*text).get<std::vector<int>>();
    }
  } catch (const std::exception&) {
  }
  return all;
}

void FailureBoard::Watch() {
  try {
    std::optional<std::string> text;
    while (!text && !stop_) text = watch_->Get(kKey, std::chrono::hours(1));
    if (text) options_.on_failure(Parse(*text, watch_->Describe()));
  } catch (const StoreError& error) {
    StoreIsGone(error.what());
  }
}

FailureBoard::Milliseconds FailureBoard::BeatTime() const {
  return options_.heartbeat.count() > 0 ? std::min(kBeat, options_.heartbeat / 6) : kBeat;
}

void FailureBoard::Beat() {
  std::string told;
  try {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_.wait_for(lock, BeatTime(), [this] { return stop_.load(); })) {
      lock.unlock();
      std::string now;
      if (options_.position) {
        const CallPosition p = options_.position();
        now = DumpJson(json{ToValues(p.call), p.step, p.busy});
      }
      if (now != told) {
        post_->Set(KeyOf("position", options_.rank), now);
        told = now;
      } else {
        post_->Get(kKey, Milliseconds(0));
      }
      lock.lock();
    }
  } catch (const StoreError& error) {
    StoreIsGone(error.what());
  }
}

void FailureBoard::StoreIsGone(const std::string& what) {
  if (stop_) return;
  Failure failure;
  failure.cause = CollectiveError::Cause::kLostRank;
  failure.rank = options_.rank;
  failure.reason = what;
  // This rank is not to blame if it serves the store to itself.
  const auto server = post_->ServedBy();
  if (server && server != options_.rank) {
    failure.culprits = {*server};
    failure.reason = StrCat("rank ", *server, " is gone, stalled or cut off: ", what);
  }
  options_.on_failure(failure);
}

}  // namespace lockstep::dist
