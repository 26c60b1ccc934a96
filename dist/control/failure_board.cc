#include "dist/control/failure_board.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/io/json.h"

namespace lockstep::dist {
namespace {

using nlohmann::json;

constexpr char kKey[] = "failure";
// One key per rank.
constexpr char kPosition[] = "position", kLost[] = "lost";
// One key for all ranks, so that reading it takes one request however many ranks there are.
constexpr char kPauseKey[] = "pause";

json ToJson(const Failure& f) {
  return {{"cause", static_cast<int>(f.cause)},
          {"rank", f.rank},
          {"operation", ToValues(f.operation)},
          {"purpose", f.purpose},
          {"culprits", f.culprits},
          {"reason", f.reason}};
}

Collective CollectiveOf(const json& j) {
  const auto call = CollectiveFromValues(j.get<std::vector<int64_t>>());
  if (!call) throw StoreError("an operation is invalid");
  return *call;
}

int NumberBelow(const json& j, int limit) {
  if (!j.is_number_integer() || j < 0 || j >= limit) throw StoreError("a number is out of range");
  return j.get<int>();
}

std::vector<int> RanksOf(const json& j, int size) {
  if (!j.is_array()) throw StoreError("a value is not a list");
  std::vector<int> ranks;
  for (const json& rank : j) ranks.push_back(NumberBelow(rank, size));
  return ranks;
}

Failure FailureOf(const json& j, int size) {
  Failure f;
  f.cause = static_cast<CollectiveError::Cause>(
      NumberBelow(j.at("cause"), static_cast<int>(CollectiveError::Cause::kCorrupt) + 1));
  f.rank = NumberBelow(j.at("rank"), size);
  f.operation = CollectiveOf(j.at("operation"));
  f.purpose = j.at("purpose").get<std::string>();
  f.culprits = RanksOf(j.at("culprits"), size);
  f.reason = j.at("reason").get<std::string>();
  return f;
}

// nullopt for text that no rank of a group of this size writes.
std::optional<DeclaredPause> ParsePause(const std::string& text, int size) {
  const json j = TryParseJson(text);
  try {
    return DeclaredPause{NumberBelow(j.at("rank"), size), j.at("what").get<std::string>(),
                         std::chrono::milliseconds(j.at("age_ms").get<int64_t>())};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// `rank` is the reader, in a group of `size`.
Failure Parse(const std::string& text, const std::string& store, int rank, int size) {
  try {
    return FailureOf(TryParseJson(text), size);
  } catch (const std::exception&) {
    Failure f;
    f.rank = rank;
    f.reason = StrCat(store, " holds ", Quoted(text), " in the key for failures, ",
                      "which no rank writes: does another program, or another build of this ",
                      "one, use the same store? Restart all ranks");
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
    // A rank that gave up says so in the reason.
    if (!by_itself)
      what += StrCat(" (reported by rank ", failure.rank, " in ",
                     of(failure.operation, failure.purpose), ")");
  } else if (failure.operation.sequence > 0 && failure.operation != operation) {
    what += StrCat(" (in ", of(failure.operation, failure.purpose), ")");
  }
  return CollectiveError(what, failure.cause, rank, operation, failure.culprits);
}

void RankStatus::Learn(const std::string& group, const Failure& failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool mine = failure.cause == CollectiveError::Cause::kAborted && failure.rank == rank_;
  if (failure_ || mine) return;
  group_ = group;
  failure_ = failure;
}

Failure RankStatus::GiveUp(const std::string& reason) const {
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
        StrCat(failure_->reason, "; after this failure in group '", group_, "', ", failure.reason);
  }
  return failure;
}

std::string Describe(const DeclaredPause& pause) {
  return StrCat("rank ", pause.rank, " has been ", pause.what, " for ", pause.age.count() / 1000,
                " s");
}

void RankStatus::BeginPause(std::string what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pauses_++ > 0) return;
  pause_ = std::move(what);
  paused_at_ = Clock::now();
}

void RankStatus::EndPause() {
  const std::lock_guard<std::mutex> lock(mutex_);
  --pauses_;
}

std::optional<DeclaredPause> RankStatus::pause() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pauses_ == 0) return std::nullopt;
  return DeclaredPause{
      rank_, pause_,
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - paused_at_)};
}

bool RankStatus::MayReportPause(std::chrono::milliseconds interval) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (last_report_ && Clock::now() - *last_report_ < interval) return false;
  last_report_ = Clock::now();
  return true;
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
      StrCat("rank ", rank, " is stalled: its process has shown no sign of life for ",
             seconds(silence), " s, with a heartbeat limit of ", seconds(options_.heartbeat),
             " s (stopped, starved of memory, or cut off from the network)");
  post_->SetWill(kKey, DumpJson(ToJson(gone)), DumpJson(ToJson(silent)), silence);
  watcher_ = std::thread([this] { Watch(); });
  heart_ = std::thread([this] { Beat(); });
}

FailureBoard::~FailureBoard() {
  // First, so that the interruptions below are not taken for failures.
  Stop();
  watch_->Interrupt();
  post_->Interrupt();
  if (heart_.joinable()) heart_.join();
  watcher_.join();
}

void FailureBoard::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
}

void FailureBoard::Leave() {
  Stop();
  heart_.join();  // it would write the keys again
  try {
    post_->ClearWill();
    for (const char* const what : {kPosition, kLost}) post_->Delete(RankKey(what, options_.rank));
    // The pause may have ended since the last beat.
    if (!published_pause_.empty()) post_->Delete(kPauseKey);
  } catch (const StoreError&) {
    // The store is gone, and the will with it.
  }
}

Failure FailureBoard::Post(const Failure& failure) {
  try {
    return Parse(post_->SetIfAbsent(kKey, DumpJson(ToJson(failure))), post_->Describe(),
                 options_.rank, options_.size);
  } catch (const StoreError& error) {
    Failure with = failure;
    with.reason += StrCat("; the other ranks could not be told: ", error.what());
    return with;
  }
}

std::optional<std::string> FailureBoard::Read(const char* what, int rank) {
  return post_->Get(RankKey(what, rank), Milliseconds(0));
}

std::map<int, CallPosition> FailureBoard::Positions() {
  std::map<int, CallPosition> positions;
  for (int r = 0; r < options_.size; ++r) {
    if (r == options_.rank) {
      positions[r] = options_.position();
      continue;
    }
    try {
      const auto text = Read(kPosition, r);
      if (!text) continue;
      const json j = TryParseJson(*text);
      positions[r] = {CollectiveOf(j.at(0)), j.at(1).get<int64_t>(), j.at(2).get<bool>()};
    } catch (const std::exception&) {
      // Its position stays unknown.
    }
  }
  return positions;
}

void FailureBoard::ShareLost(const std::vector<int>& lost) {
  try {
    post_->Set(RankKey(kLost, options_.rank), DumpJson(json(lost)));
  } catch (const StoreError&) {
    // This rank's own view must do.
  }
}

std::map<int, std::vector<int>> FailureBoard::Lost() {
  std::map<int, std::vector<int>> all;
  for (int r = 0; r < options_.size; ++r) {
    try {
      if (const auto text = Read(kLost, r)) all[r] = RanksOf(TryParseJson(*text), options_.size);
    } catch (const std::exception&) {
      // The rank has shared nothing valid.
    }
  }
  return all;
}

void FailureBoard::Watch() {
  try {
    std::optional<std::string> text;
    while (!text && !stop_) text = watch_->Get(kKey, std::chrono::hours(1));
    if (!text) return;
    options_.on_failure(Parse(*text, watch_->Describe(), options_.rank, options_.size));
  } catch (const StoreError& error) {
    StoreIsGone(error.what());
  }
}

FailureBoard::Milliseconds FailureBoard::BeatTime() const {
  Milliseconds beat = kBeat;
  if (options_.heartbeat.count() > 0) beat = std::min(beat, options_.heartbeat / 6);
  if (options_.timeout.count() > 0) beat = std::min(beat, options_.timeout / 8);
  return std::max(beat, Milliseconds(1));
}

void FailureBoard::SendHeartbeat() {
  const std::lock_guard<std::mutex> lock(heartbeat_mutex_);
  std::string now;
  if (options_.position) {
    const CallPosition p = options_.position();
    now = DumpJson(json{ToValues(p.call), p.step, p.busy});
  }
  if (now == sent_position_) {
    post_->Get(kKey, Milliseconds(0));
    return;
  }
  post_->Set(RankKey(kPosition, options_.rank), now);
  sent_position_ = now;
}

void FailureBoard::Beat() {
  try {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_.wait_for(lock, BeatTime(), [this] { return stop_.load(); })) {
      lock.unlock();
      SendHeartbeat();
      PublishPause();
      if (options_.on_beat) options_.on_beat();
      lock.lock();
    }
  } catch (const StoreError& error) {
    StoreIsGone(error.what());
  }
}

// Repeated at each beat, with the pause's age: this shows the others that the rank is alive.
void FailureBoard::PublishPause() {
  const auto pause = options_.status ? options_.status->pause() : std::nullopt;
  if (!pause && published_pause_.empty()) return;
  if (!pause) {
    published_pause_.clear();
    post_->Delete(kPauseKey);
    return;
  }
  published_pause_ =
      DumpJson(json{{"rank", pause->rank}, {"what", pause->what}, {"age_ms", pause->age.count()}});
  post_->Set(kPauseKey, published_pause_);
}

std::optional<DeclaredPause> FailureBoard::LivePause() {
  auto pause = options_.status ? options_.status->pause() : std::nullopt;
  if (!pause) {
    const std::string text = post_->Get(kPauseKey, Milliseconds(0)).value_or("");
    if (text == std::exchange(seen_pause_, text)) return std::nullopt;
    pause = ParsePause(text, options_.size);
  }
  if (pause && pause->age > kLongestPause) return std::nullopt;
  return pause;
}

std::string FailureBoard::PauseClause() {
  try {
    const auto pause =
        ParsePause(post_->Get(kPauseKey, Milliseconds(0)).value_or(""), options_.size);
    return pause ? StrCat("; ", Describe(*pause)) : "";
  } catch (const StoreError&) {
    return "";
  }
}

void FailureBoard::StoreIsGone(const std::string& what) {
  if (stop_) return;
  Failure failure;
  failure.cause = CollectiveError::Cause::kLostRank;
  failure.rank = options_.rank;
  failure.reason = what;
  // If this rank serves the store itself, no rank is at fault.
  const auto server = post_->ServedBy();
  if (server && server != options_.rank) {
    failure.culprits = {*server};
    failure.reason = StrCat("rank ", *server, " is gone, stalled or cut off: ", what);
  }
  options_.on_failure(failure);
}

}  // namespace lockstep::dist
